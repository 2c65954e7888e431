"""Dataclasses as JSON: estimates written flat, values checked, results of earlier versions read."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.record import digest, from_json, read_record, to_json
from blockdraft_bench.common.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Row:
    dataset: str
    length: Estimate
    shares: tuple[Estimate, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    edges: tuple[float, float] | None = None
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rows:
    results: tuple[Row, ...]


ROW = Row(
    "gsm8k",
    Estimate(2.5, (2.0, 3.0), 9),
    (Estimate(0.5, (0.25, 0.75), 9), Estimate(None, None, 0)),
    ((1, 2), (3,)),
)


def test_estimates_stand_side_by_side() -> None:
    [row] = json.loads(to_json(Rows((ROW,))))["results"]
    assert row == {
        "dataset": "gsm8k",
        "length": 2.5,
        "length_ci95": [2.0, 3.0],
        "length_answers": 9,
        "shares": [0.5, None],
        "shares_ci95": [[0.25, 0.75], None],
        "shares_answers": [9, 0],
        "counts": [[1, 2], [3]],
        "edges": None,
        "stop": [],
    }


@pytest.mark.parametrize("row", [ROW, Row("empty", Estimate(None), edges=(0.0, 1.0))])
def test_comes_back_as_it_was(row: Row) -> None:
    assert from_json(Rows, to_json(Rows((row,)))) == Rows((row,))


def test_intervals_of_earlier_versions_rest_on_the_samples_of_their_row() -> None:
    def read(**counts: int) -> Row:
        fields = {"dataset": "d", "length": 2, "length_ci95": [1, 3], **counts}
        row = {**fields, "shares": [0.5], "shares_ci95": [[0.0, 1.0]], "unknown": 1}
        return from_json(Row, json.dumps(row))

    assert read(samples=20).length == Estimate(2.0, (1.0, 3.0), 20)
    assert read(groups=20).shares == (Estimate(0.5, (0.0, 1.0), 20),)
    assert read(samples=4).length == Estimate(2.0, None, 4)
    assert read().length == Estimate(2.0, (1.0, 3.0), None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset": 1}, r"Expected `str`, got `int` - at `\$.dataset`"),
        ({"length": "2"}, r"got `str` - at `\$.length.value`"),
        ({"length_ci95": [1.0]}, "Expected `array` of length 2"),
        ({"counts": [[1.5]]}, "Expected `int`, got `float`"),
        ({"shares": [0.5], "shares_ci95": []}, "shorter than argument 1"),
    ],
)
def test_values_are_checked(changed: dict[str, object], message: str) -> None:
    fields = {"dataset": "d", "length": 2.0, "length_ci95": None, **changed}
    with pytest.raises(ValueError, match=message):
        from_json(Row, json.dumps(fields))


def test_what_is_not_finite_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(Row("d", Estimate(math.nan)))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), ("[1", "is no row.json: "), ("{}", "`dataset`")],
)
def test_files_that_are_something_else(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "row.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(BenchUsageError, match=message):
        read_record(Row, path, "row.json")


def test_a_digest_stands_for_all_it_is_of() -> None:
    first = digest(ROW, {"b": 1, "a": 2}, frozenset({2, 1}))
    assert first == digest(ROW, {"a": 2, "b": 1}, frozenset({1, 2}))
    assert len(first) == 16
    assert first != digest(ROW, {"a": 2, "b": 1}, frozenset({1, 3}))
    assert digest([1, 2]) != digest([1], 2)
