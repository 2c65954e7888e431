"""`blockdraft bench acceptance`: what a drafter gains, by dataset and temperature."""

import argparse

from blockdraft_bench.common.datasets import TEST_SETS, read_datasets
from blockdraft_bench.common.flags import (
    DRAFTER_HELP,
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    check_at_least,
    check_different,
)
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings

LEAST = {
    **{"samples": 1, "max_tokens": 1, "max_prompt_tokens": 1},
    **{"concurrency": 1, "block_size": 2, "temperature": 0},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench acceptance`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=TEST_SETS, samples=32, max_tokens=256, max_prompt_tokens=1024
    )
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--drafter", default=drafter.drafter, help=DRAFTER_HELP)
    option("--block-size", type=int, default=drafter.block_size, help="block of a random drafter")
    option("--draft-length", type=int, help="tokens of a proposal; else all that a block holds")
    option("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="0 is greedy")
    option("--seed", type=int, default=0, help="of rows, sampling and intervals")
    option("--concurrency", type=int, default=8, help="answers decoded at a time")
    option("--dtype", choices=DTYPES, default=drafter.dtype, help="of weights, cache and contexts")
    add_output_arguments(parser)


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Check the flags and measure."""
    check_at_least(args, LEAST)
    check_different(args, "temperature")
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.acceptance.measure import load_and_measure

    return load_and_measure(args, datasets, run)
