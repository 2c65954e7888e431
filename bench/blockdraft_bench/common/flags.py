"""The flags that measurements share; needs no jax, so that `--help` is quick."""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path("bench-results")
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


def output_folder(given: Path | None, benchmark: str, identity: str) -> Path:
    """Return the folder of a measurement's files, made if need be.

    Args:
        given: What `--output` says.
        benchmark: Name of the measurement.
        identity: Digest of its settings, so that the same measurement finds its folder again.
    """
    folder = given or RESULTS / f"{benchmark}-{datetime.date.today()}-{identity}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
