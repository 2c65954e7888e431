"""The flags of `blockdraft bench serve`; needs no jax, so that `--help` is quick."""

import argparse
import math

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flags import (
    DRAFTER_HELP,
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    check_at_least,
    check_different,
    flag,
    given,
)
from blockdraft_bench.serve.load_level import METHODS
from blockdraft_bench.serve.settings import load_levels
from blockdraft_client.cli.options import add_credential_arguments
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench serve`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=["gsm8k", "mt-bench"], samples=32, max_tokens=128, max_prompt_tokens=256
    )
    option("--temperature", type=float, default=0.0, help="0 is greedy")
    option("--seed", type=int, default=0, help="of rows, sampling, arrivals and intervals")

    option = parser.add_argument_group("load").add_argument
    option(
        "--concurrency",
        type=int,
        nargs="+",
        metavar="N",
        help="closed loop: requests in flight; else 1 2 4 8, unless --rate or --split is given",
    )
    option("--rate", type=float, nargs="+", metavar="R", help="open loop: requests per second")
    option("--method", nargs="+", choices=METHODS, help="else both")
    option("--requests", type=int, help="of each run; else 2 for each unit of load, at least 8")
    option("--warm-up", type=int, default=2, help="requests of each method that do not count")
    option(
        "--flush-tokens",
        type=int,
        help="prompt tokens sent before each run to empty the prefix cache; else what the "
        "service holds, 0 with --address",
    )
    option("--timeout-seconds", type=float, default=300.0, help="deadline of each request")
    option("--slo-ttft-seconds", type=float, help="longest time to the first token")
    option("--slo-tpot-seconds", type=float, help="longest time per token after it")
    option("--price-per-hour", type=float, help="of all hardware that serves, in any currency")

    option = parser.add_argument_group("split").add_argument
    option("--split", action="store_true", help="compare with the same loop in one process")
    option(
        "--split-concurrency", type=int, nargs="+", default=[1], metavar="N", help="at a time there"
    )

    service = parser.add_argument_group("service")
    option = service.add_argument
    option("--address", help="of a running service; else one is started")
    add_credential_arguments(service)
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--drafter", default=drafter.drafter, help=DRAFTER_HELP)
    option("--dtype", choices=DTYPES, default=drafter.dtype, help="of weights, cache and contexts")
    option("--draft-policy", choices=("adaptive", "fixed"), default="adaptive", help="draft length")
    option(
        "--max-sequences", type=int, help="decoded at once; else the most in flight, 16 for --rate"
    )
    add_output_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded.

    Raises:
        BenchUsageError: If a flag is out of range or contradicts another.
    """
    positive = ("samples", "max_tokens", "max_prompt_tokens", "requests", "max_sequences")
    counts = (*positive, "concurrency", "split_concurrency")
    check_at_least(
        args, {"warm_up": 0, "flush_tokens": 0, "temperature": 0, **dict.fromkeys(counts, 1)}
    )
    limits = ("slo_ttft_seconds", "slo_tpot_seconds", "price_per_hour")
    for name in ("rate", "timeout_seconds", *limits):
        if not all(math.isfinite(value) and value > 0 for value in given(args, name)):
            raise BenchUsageError(f"{flag(name)} must be more than 0")
    check_different(args, "concurrency", "rate", "method", "split_concurrency")
    in_flight = [level.value for level in load_levels(args) if level.mode == "closed"]
    if args.requests is not None and args.requests < max(in_flight, default=0):
        most = int(max(in_flight))
        raise BenchUsageError(f"--requests {args.requests} cannot keep {most} in flight")
