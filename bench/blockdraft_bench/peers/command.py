"""`blockdraft bench peers`: other programs and this one, on the same prompts in the same run."""

import argparse

from blockdraft_bench.common.datasets import read_datasets
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flags import (
    DRAFTER_HELP,
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    check_at_least,
)
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.peers.available import PEERS, TRANSFORMERS, choose_peers
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings

DTYPES = ("float32", "bfloat16")
# An answer of one token takes no time after its first.
LEAST = {"samples": 1, "max_tokens": 2, "max_prompt_tokens": 1, "threads": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench peers`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=["gsm8k", "humaneval"], samples=8, max_tokens=128, max_prompt_tokens=512
    )
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--drafter", default=drafter.drafter, help=DRAFTER_HELP)
    option(
        "--peer", nargs="+", choices=PEERS, help="peers that have to take part; else all who can"
    )
    option("--assistant", help="smaller model for assisted generation, named like a target")
    option("--dtype", choices=DTYPES, default=DTYPES[0], help="of transformers")
    option("--threads", type=int, help="of the peers; else one for each core this process may use")
    option("--seed", type=int, default=0, help="of rows and intervals")
    add_output_arguments(parser)


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Check the flags and who can take part, and measure."""
    check_at_least(args, LEAST)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    chosen, skipped = choose_peers(args.peer, resolve_target(args.target))
    if args.assistant is not None and TRANSFORMERS not in chosen:
        reason = skipped.get(TRANSFORMERS, "--peer leaves it out")
        raise BenchUsageError(f"--assistant is for transformers: {reason}")
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.peers.measure import load_and_measure

    return load_and_measure(args, datasets, run, chosen, skipped)
