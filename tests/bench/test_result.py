"""Results as JSON, estimates written flat, and as Markdown tables."""

import json
import math

import pytest

from blockdraft_bench.provenance import Target, digest
from blockdraft_bench.result import Row, bullets, number, page, share, table, to_json
from blockdraft_bench.statistics import Estimate

ROW: Row = {
    "dataset": "gsm8k",
    "length": Estimate(2.5, (2.0, 3.0), 9),
    "shares": (Estimate(0.5, (0.25, 0.75), 9), Estimate(None, None, 0)),
    "counts": ((1, 2), (3,)),
    "edges": None,
    "none": (),
    "target": Target("0" * 16, "tiny"),
    "nested": [{"speed": Estimate(1.0, None, 2)}],
}


def test_estimates_stand_side_by_side() -> None:
    assert json.loads(to_json({"results": [ROW]}))["results"] == [
        {
            "dataset": "gsm8k",
            "length": 2.5,
            "length_ci95": [2.0, 3.0],
            "length_answers": 9,
            "shares": [0.5, None],
            "shares_ci95": [[0.25, 0.75], None],
            "shares_answers": [9, 0],
            "counts": [[1, 2], [3]],
            "edges": None,
            "none": [],
            "target": {"fingerprint": "0" * 16, "name": "tiny"},
            "nested": [{"speed": 1.0, "speed_ci95": None, "speed_answers": 2}],
        }
    ]


def test_what_is_not_finite_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"length": Estimate(math.nan, None, 1)})


def test_a_digest_stands_for_all_it_is_of() -> None:
    first = digest(ROW, {"b": 1, "a": 2}, frozenset({2, 1}))
    assert first == digest(ROW, {"a": 2, "b": 1}, frozenset({1, 2}))
    assert len(first) == 16
    assert first != digest(ROW, {"a": 2, "b": 1}, frozenset({1, 3}))
    assert digest([1, 2]) != digest([1], 2)


def test_a_table() -> None:
    rows = [("gsm8k", 12, 0.5, None, Estimate(2.5, (2.0, 3.0), 9))]
    assert table(["Set", "Answers", "a", "b", "τ"], rows).splitlines() == [
        "| Set | Answers | a | b | τ |",
        "| --- | --- | --- | --- | --- |",
        "| gsm8k | 12 | 0.50 | - | 2.50 [2.00, 3.00; n = 9] |",
    ]
    assert table(["Set"], []) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (2.5, "2.50x"),
        (Estimate(None, None, 0), "-"),
        (Estimate(2.5, (2.0, 3.0), 7), "2.50x"),
        (Estimate(2.5, (2.0, 3.0), 8), "2.50x [2.00, 3.00; n = 8]"),
    ],
)
def test_numbers(value: float | Estimate | None, text: str) -> None:
    assert number(value, unit="x") == text


def test_units_and_shares() -> None:
    assert number(Estimate(0.25, (0.125, 0.5), 8), 0, " ms", factor=1000.0) == (
        "250 ms [125, 500; n = 8]"
    )
    assert (share(0.125), share(None)) == ("12.5%", "-")


def test_a_page_leaves_out_what_is_empty() -> None:
    assert page("about", "", table(["a"], [["b"]]), bullets(["x", "y"])) == (
        "about\n\n| a |\n| --- |\n| b |\n\n- x\n- y\n"
    )
