"""Results as JSON, estimates written flat, as Markdown tables, and drawn."""

import json
import math

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from blockdraft_bench.provenance import Target, digest
from blockdraft_bench.result import (
    ResultRow,
    bullets,
    draw,
    number,
    page,
    share,
    table,
    to_json,
    value_and_range,
)
from blockdraft_bench.statistics import Estimate

ROW: ResultRow = {
    "dataset": "gsm8k",
    "length": Estimate(2.5, (2.0, 3.0), 9),
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
            "length_completions": 9,
            "counts": [[1, 2], [3]],
            "edges": None,
            "none": [],
            "target": {"fingerprint": "0" * 16, "name": "tiny"},
            "nested": [{"speed": 1.0, "speed_ci95": None, "speed_completions": 2}],
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
    assert table(["Set", "Completions", "a", "b", "τ"], rows).splitlines() == [
        "| Set | Completions | a | b | τ |",
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


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Estimate(2.0, (1.5, 2.25), 8), (2.0, 0.5, 0.25)),
        (Estimate(2.0, (2.1, 2.5), 8), (2.0, 0.0, 0.5)),  # percentiles can miss the value
        (Estimate(2.0, (1.0, 1.9), 8), (2.0, 1.0, 0.0)),
        ({"median": 3.0, "quartiles": (2.0, 5.0)}, (3.0, 1.0, 2.0)),
    ],
)
def test_ranges(measured: object, expected: tuple[float, float, float]) -> None:
    assert value_and_range(measured) == expected


@pytest.mark.parametrize("measured", [2.0, Estimate(2.0, None, 1)])
def test_no_interval_has_no_range(measured: object) -> None:
    # Of length 0 it would look like certainty.
    value, *edges = value_and_range(measured)
    assert value == 2.0
    assert all(map(math.isnan, edges))


def test_bars_over_names_and_curves_over_numbers() -> None:
    rows: list[ResultRow] = [
        {"set": name, "k": float(k), "T": 0.5, "speed": k if name == "a" else None}
        for name in "ab"
        for k in (1, 2)
    ]
    [bars] = draw(rows, "set", "speed", ["T"]).axes
    assert [label.get_text() for label in bars.get_xticklabels()] == ["a", "b"]
    heights = [patch.get_height() for patch in bars.patches if isinstance(patch, Rectangle)]
    assert heights == [1.0, 2.0]
    figure = draw(rows, "k", "speed", ["set"], log=True)
    [curves], [legend] = figure.axes, figure.legends
    assert np.array_equal(curves.get_lines()[0].get_xydata(), [[1.0, 1.0], [2.0, 2.0]])
    assert [text.get_text() for text in legend.get_texts()] == ["set a"]
    figure.draw_without_rendering()
    assert not legend.get_window_extent().overlaps(curves.get_window_extent())
    assert curves.get_xscale() == curves.get_yscale() == "log"
    assert draw([], "set", "speed", ["T"]).axes
