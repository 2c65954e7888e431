"""`blockdraft bench int8`: how far int8 weights move a target's logits."""

import argparse

from blockdraft_bench.common.datasets import TEST_SETS, read_datasets
from blockdraft_bench.common.flags import (
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    check_at_least,
)
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench int8`."""
    defaults = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=TEST_SETS, samples=4, max_tokens=128, max_prompt_tokens=384
    )
    option("--target", default=defaults.target, help=TARGET_HELP)
    option("--seed", type=int, default=0, help="of the choice of rows")
    option("--dtype", choices=DTYPES, default=defaults.dtype, help="of what is not int8")
    add_output_arguments(parser)


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Check the flags and measure."""
    check_at_least(args, {"samples": 1, "max_tokens": 1, "max_prompt_tokens": 1})
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.int8.measure import load_and_measure

    return load_and_measure(args, datasets, run)
