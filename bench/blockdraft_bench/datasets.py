"""Test sets: JSON lines of `{"id": ..., "turns": [...]}`, in a folder or as single files.

Two sets come with this package, written for this project: `starter` has sums, code, questions and
texts to write; `copy` asks for completions that repeat much of their prompts.
"""

import gzip
import itertools
import json
import os
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from blockdraft_bench.errors import BenchUsageError

# The sets draft models are compared on in the literature; never trained on.
TEST_SETS = (
    "math500",
    "aime24",
    "aime25",
    "gsm8k",
    "humaneval",
    "mbpp",
    "mt-bench",
    "alpaca",
    "swe-bench",
)
OWN_SETS = {name: Path(__file__).parent / "data" / f"{name}.jsonl" for name in ("starter", "copy")}
SUFFIXES = (".jsonl", ".jsonl.gz")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatasetSample:
    """One row of a dataset, and its id, unique there.

    The text is the first user message: later turns respond to a reply this project did not give.
    """

    sample_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A name and its rows, in the order of the file."""

    name: str
    samples: tuple[DatasetSample, ...]


def read_datasets(specs: Sequence[str], directory: Path | None) -> list[Dataset]:
    """Read datasets by name from a folder, None for `$BLOCKDRAFT_DATASETS` or `./datasets`."""
    folder = directory or Path(os.environ.get("BLOCKDRAFT_DATASETS", "datasets"))
    datasets = [read_dataset(find_dataset(spec, folder)) for spec in specs]
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise BenchUsageError(f"datasets need different names, got {', '.join(names)}")
    return datasets


def find_dataset(spec: str, directory: Path) -> Path:
    """Return the file of a test set, `NAME.jsonl` or `NAME.jsonl.gz`, or the file that is named."""
    if spec in OWN_SETS:
        return OWN_SETS[spec]
    if spec in TEST_SETS:
        for suffix in SUFFIXES:
            path = directory / f"{spec}{suffix}"
            if path.is_file():
                return path
        raise BenchUsageError(
            f"{directory} has no {spec}.jsonl: --datasets-dir names the folder of the published "
            "sets; --dataset starter needs none"
        )
    path = Path(spec).expanduser()
    if path.name.endswith(SUFFIXES):
        if path.is_file():
            return path
        raise BenchUsageError(f"the dataset {spec} does not exist")
    names = (*TEST_SETS, *OWN_SETS)
    raise BenchUsageError(f"{spec!r} is neither a .jsonl file nor one of {', '.join(names)}")


def read_dataset(path: Path) -> Dataset:
    """Read a dataset; empty ones, damaged lines and two equal ids are refused."""
    samples: dict[str, DatasetSample] = {}
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007, the handlers name it
                sample = _sample(json.loads(line))
                if samples.setdefault(sample.sample_id, sample) is not sample:
                    raise ValueError(f"the id {sample.sample_id!r} was used before")
    except (OSError, EOFError, zlib.error) as error:
        raise BenchUsageError(f"{path} cannot be read after line {number}: {error}") from error
    except ValueError as error:
        raise BenchUsageError(f"{path}, line {number}: {error}") from error
    if not samples:
        raise BenchUsageError(f"{path} is empty")
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    return Dataset(name, tuple(samples.values()))


def choose_samples(samples: Sequence[T], count: int, seed: int) -> tuple[T, ...]:
    """Return `count` rows spread evenly over all of them: one at random from each stretch.

    Files are often sorted by subject or difficulty, so that a plain random choice of few rows
    may miss some. The same seed gives the same rows; all rows if there are not more.
    """
    if count >= len(samples):
        return tuple(samples)
    rng = random.Random(seed)
    edges = [index * len(samples) // count for index in range(count + 1)]
    return tuple(samples[rng.randrange(start, stop)] for start, stop in itertools.pairwise(edges))


def _sample(fields: Any) -> DatasetSample:
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    sample_id, turns = fields.get("id"), fields.get("turns")
    if not isinstance(sample_id, str) or not sample_id:
        raise ValueError('"id" must be a text')
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise ValueError('"turns" must be a list of texts, at least one')
    if not turns[0].strip():
        raise ValueError("the first turn is empty")
    return DatasetSample(sample_id, turns[0])
