"""From the flags of `bench serve` to what the service is asked and how it is set up."""

import argparse

from blockdraft_bench.serve.load_level import METHODS, LoadLevel
from blockdraft_bench.serve.report import ServeSettings
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings

DEFAULT_CONCURRENCY = (1, 2, 4, 8)
# A step of the service started here is as large as that of `blockdraft serve`.
STEP_TOKENS = SchedulerSettings().max_step_tokens


def serve_settings(
    args: argparse.Namespace, datasets: tuple[str, ...], prompts: int
) -> ServeSettings:
    """Return how the service is asked.

    Args:
        args: The flags, checked before.
        datasets: Where prompts are from.
        prompts: How many there are.
    """
    flush = args.flush_tokens
    if flush is None:
        config = engine_config(args)
        flush = config.num_pages * config.page_size if args.address is None else 0
    return ServeSettings(
        loads=load_levels(args),
        methods=tuple(m for m in METHODS if args.method is None or m in args.method),
        split_concurrency=tuple(args.split_concurrency) if args.split else (),
        requests=args.requests,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        warm_up=args.warm_up,
        flush_tokens=flush,
        timeout_seconds=args.timeout_seconds,
        slo_ttft_seconds=args.slo_ttft_seconds,
        slo_tpot_seconds=args.slo_tpot_seconds,
        price_per_hour=args.price_per_hour,
        datasets=datasets,
        prompts=prompts,
        max_prompt_tokens=args.max_prompt_tokens,
    )


def engine_config(args: argparse.Namespace) -> EngineSettings:
    """Return how the verifier of a service started here is to run, and the one process beside it.

    Its cache holds every sequence at full length, so that nobody is preempted.
    """
    sequences = args.max_sequences
    if sequences is None:
        in_flight = [int(level.value) for level in load_levels(args) if level.mode == "closed"]
        default = [SchedulerSettings().max_sequences] if args.rate else []
        split = args.split_concurrency if args.split else []
        sequences = max([*in_flight, *default, *split])
    context_tokens = args.max_prompt_tokens + args.max_tokens
    page_size = EngineSettings().page_size
    return EngineSettings(
        scheduler=SchedulerSettings(
            max_sequences=sequences,
            max_step_tokens=max(STEP_TOKENS, sequences),
            max_context_tokens=context_tokens,
        ),
        num_pages=sequences * (-(-context_tokens // page_size) + 1),
        dtype=args.dtype,
        draft_policy=args.draft_policy,
    )


def load_levels(args: argparse.Namespace) -> tuple[LoadLevel, ...]:
    """Return how hard the service is pressed: closed loops first."""
    closed = args.concurrency
    if closed is None:
        closed = () if args.rate or args.split else DEFAULT_CONCURRENCY
    levels = [LoadLevel("closed", float(value)) for value in closed]
    return (*levels, *(LoadLevel("open", value) for value in args.rate or ()))
