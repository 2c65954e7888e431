"""What `bench serve` asks of a service, and how the service it starts is set up."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft_bench.common.line_store import digest
from blockdraft_bench.serve.flags import closed_levels
from blockdraft_bench.serve.load import METHODS, Load, Method
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# A step of the service started here is as large as that of `blockdraft serve`.
STEP_TOKENS = SchedulerSettings().max_step_tokens


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How the service is asked.

    Attributes:
        loads: How hard, in the order in which they are measured.
        methods: With drafting, without, or both.
        split_concurrency: Prompts at a time of each comparison with one process.
        requests: Requests of each run; None leaves it to the load.
        max_tokens: Most tokens of an answer.
        temperature: Of the target; 0 is greedy.
        seed: Of rows, sampling, arrivals and intervals.
        warm_up: Requests of each method that come first and are not counted.
        flush_tokens: Prompt tokens sent before each run to drive earlier prompts out of the cache.
        timeout_seconds: Deadline of each request.
    """

    loads: tuple[Load, ...]
    methods: tuple[Method, ...]
    split_concurrency: tuple[int, ...]
    requests: int | None
    max_tokens: int
    temperature: float
    seed: int
    warm_up: int
    flush_tokens: int
    timeout_seconds: float

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> "ServeSettings":
        """Read the flags, checked before."""
        flush = args.flush_tokens
        if flush is None:
            config = engine_config(args)
            flush = config.num_pages * config.page_size if args.address is None else 0
        return cls(
            loads=_loads(args),
            methods=tuple(m for m in METHODS if args.method is None or m in args.method),
            split_concurrency=tuple(args.split_concurrency) if args.split else (),
            requests=args.requests,
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            seed=args.seed,
            warm_up=args.warm_up,
            flush_tokens=flush,
            timeout_seconds=args.timeout_seconds,
        )

    def requests_of(self, load: Load) -> int:
        """Return how many requests a run sends."""
        return load.default_requests() if self.requests is None else self.requests

    def split_requests(self, concurrency: int) -> int:
        """Return how many requests are decoded in both ways, in whole groups."""
        wanted = self.requests_of(Load("closed", float(concurrency)))
        return -(-wanted // concurrency) * concurrency

    def identity(self, about: Mapping[str, Any], pool: Sequence[GenerationRequest]) -> str:
        """Return a digest of all that decides a run beside its load, method and size.

        Args:
            about: What is measured: service and models.
            pool: What it is asked.
        """
        fields = asdict(self)
        # More of these change no run that was made.
        for name in ("loads", "methods", "split_concurrency", "requests"):
            del fields[name]
        prompts = [(request.request_id, request.prompt) for request in pool]
        return digest({**fields, **about, "prompts": prompts})


def engine_config(args: argparse.Namespace) -> EngineSettings:
    """Return how the verifier of a service started here is to run, and the one process beside it.

    Its cache holds every sequence at full length, so that nobody is preempted.
    """
    sequences = args.max_sequences
    if sequences is None:
        in_flight = [int(load.value) for load in _loads(args) if load.mode == "closed"]
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


def _loads(args: argparse.Namespace) -> tuple[Load, ...]:
    closed = [Load("closed", float(value)) for value in closed_levels(args)]
    return (*closed, *(Load("open", value) for value in args.rate or ()))
