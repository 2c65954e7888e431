"""Test sets as files: finding, reading, choosing."""

import gzip
import json
from pathlib import Path

import pytest

from blockdraft_bench.datasets import (
    Dataset,
    DatasetSample,
    choose_samples,
    find_dataset,
    read_dataset,
)
from blockdraft_bench.errors import BenchUsageError

ROWS = [{"id": "a", "turns": ["one", "two"]}, {"id": "b", "turns": ["three"]}]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_reads_the_first_turns(tmp_path: Path) -> None:
    expected = Dataset("gsm8k", (DatasetSample("a", "one"), DatasetSample("b", "three")))
    lines = [json.dumps(row) for row in ROWS]
    assert read_dataset(write(tmp_path / "gsm8k.jsonl", *lines)) == expected
    with gzip.open(tmp_path / "gsm8k.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    assert read_dataset(tmp_path / "gsm8k.jsonl.gz") == expected


def test_finds_names_and_files(tmp_path: Path) -> None:
    path = write(tmp_path / "mt-bench.jsonl")
    assert find_dataset("mt-bench", tmp_path) == path
    assert find_dataset(str(path), Path("elsewhere")) == path


@pytest.mark.parametrize(("name", "count"), [("starter", 24), ("copy", 12)])
def test_some_sets_come_with_the_package(tmp_path: Path, name: str, count: int) -> None:
    dataset = read_dataset(find_dataset(name, tmp_path))
    assert dataset.name == name
    assert len(dataset.samples) == count


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ("[]", "line 2: not a JSON object"),
        ('{"turns": ["x"]}', '"id" must be a text'),
        ('{"id": "b", "turns": []}', '"turns" must be a list of texts'),
        ('{"id": "b", "turns": [1]}', '"turns" must be a list of texts'),
        ('{"id": "b", "turns": [" "]}', "the first turn is empty"),
        ('{"id": "a", "turns": ["x"]}', "the id 'a' was used before"),
    ],
)
def test_says_which_line_is_damaged(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "set.jsonl", json.dumps(ROWS[0]), line)
    with pytest.raises(BenchUsageError, match=message):
        read_dataset(path)


def test_refuses_empty_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(BenchUsageError, match="is empty"):
        read_dataset(write(tmp_path / "set.jsonl"))
    with pytest.raises(BenchUsageError, match="cannot be read"):
        read_dataset(tmp_path / "none.jsonl")
    with pytest.raises(BenchUsageError, match="cannot be read"):
        read_dataset(write(tmp_path / "text.jsonl.gz", "not compressed"))


def test_chosen_rows_are_spread_over_the_file() -> None:
    samples = [DatasetSample(str(i), "x") for i in range(100)]
    for seed in range(5):
        chosen = [int(sample.sample_id) for sample in choose_samples(samples, 10, seed)]
        assert [index // 10 for index in chosen] == list(range(10))
    assert choose_samples(samples, 10, 1) == choose_samples(samples, 10, 1)
    assert choose_samples(samples, 10, 1) != choose_samples(samples, 10, 2)
    assert choose_samples(samples, 100, 0) == choose_samples(samples, 500, 0) == tuple(samples)
