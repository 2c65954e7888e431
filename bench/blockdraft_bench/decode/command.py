"""`blockdraft bench decode`: plain decoding and draft methods, one answer at a time."""

import argparse

from blockdraft_bench.common.datasets import TEST_SETS, read_datasets
from blockdraft_bench.common.flags import (
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    check_at_least,
    check_different,
)
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings

METHODS = ("plain", "dflash", "eagle3")
LEAST = {
    # An answer of one token takes no time after its first.
    **{"samples": 1, "max_tokens": 2, "max_prompt_tokens": 1},
    **{"block_size": 2, "draft_length": 1, "temperature": 0},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench decode`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=TEST_SETS, samples=8, max_tokens=128, max_prompt_tokens=512
    )
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--method", nargs="+", choices=METHODS, help="else all that a drafter is found for")
    option("--dflash", default=drafter.drafter, metavar="DRAFTER", help="as for a drafter process")
    option("--eagle3", default="eagle3", metavar="DRAFTER", help="as for a drafter process")
    option("--block-size", type=int, default=drafter.block_size, help="block of a random drafter")
    option("--draft-length", type=int, help="tokens of a proposal; else all that a block holds")
    option(
        "--draft-policy",
        choices=("adaptive", "fixed"),
        default="adaptive",
        help="draft as far as it pays, or always as far as allowed",
    )
    option("--temperature", type=float, nargs="+", default=[0.0], help="0 is greedy")
    option("--seed", type=int, default=0, help="of rows, sampling and intervals")
    option("--dtype", choices=DTYPES, default=drafter.dtype, help="of weights, cache and contexts")
    add_output_arguments(parser)


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Check the flags and measure."""
    check_at_least(args, LEAST)
    check_different(args, "temperature", "method")
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.decode.measure import load_and_measure

    return load_and_measure(args, datasets, run)
