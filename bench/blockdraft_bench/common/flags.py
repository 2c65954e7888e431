"""The flags that measurements share, and checks of them; `--help` must not wait for jax."""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.settings import RESULTS

TARGET_HELP = "directory, .gguf file, hub id or known name"
DRAFTER_HELP = "directory, hub id, auto, eagle3 or random[:seed]"


def add_prompt_arguments(
    parser: argparse.ArgumentParser,
    *,
    datasets: Sequence[str],
    samples: int,
    max_tokens: int,
    max_prompt_tokens: int,
) -> None:
    """Add the flags that say which prompts are answered, and how far; the rest are defaults."""
    option = parser.add_argument
    option("--dataset", nargs="+", default=list(datasets), metavar="SET", help="names or files")
    option(
        "--datasets-dir",
        type=Path,
        help="where NAME.jsonl lie; else $BLOCKDRAFT_DATASETS or ./datasets",
    )
    option(
        "--samples", type=int, default=samples, help="rows of each dataset, spread over the file"
    )
    option("--max-tokens", type=int, default=max_tokens, help="most tokens of an answer")
    option(
        "--max-prompt-tokens",
        type=int,
        default=max_prompt_tokens,
        help="longer messages lose their end",
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the result goes."""
    option = parser.add_argument
    option("--output", type=Path, help=f"folder for the files; else a new one in {RESULTS}")
    option("--json", action="store_true", help="print the JSON report instead of Markdown")


def check_at_least(args: argparse.Namespace, bounds: Mapping[str, int | float]) -> None:
    """Check numbers, or each of several, against their lower bounds; those not given pass.

    Args:
        args: The parsed flags.
        bounds: Least value of each, by the flag's name in `args`.

    Raises:
        BenchUsageError: If one is too small, or no number.
    """
    for name, bound in bounds.items():
        values = given(args, name)
        if not all(math.isfinite(value) and value >= bound for value in values):
            text = " ".join(map(str, values))
            raise BenchUsageError(f"{flag(name)} must be at least {bound}, got {text}")


def check_different(args: argparse.Namespace, *names: str) -> None:
    """Check that flags of several values have none twice.

    Raises:
        BenchUsageError: If one does.
    """
    for name in names:
        values = given(args, name)
        if len(set(values)) < len(values):
            raise BenchUsageError(f"{flag(name)} has the same value twice")


def given(args: argparse.Namespace, name: str) -> Sequence[Any]:
    """Return the values of a flag, of one value or several; none if it was not given."""
    value = getattr(args, name)
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def flag(name: str) -> str:
    """Return the flag whose value has a name in the parsed flags."""
    return f"--{name.replace('_', '-')}"
