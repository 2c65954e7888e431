"""What is drawn: every number once, with a range as long as its interval, or none."""

import math

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from blockdraft_bench.figure import draw, value_and_range
from blockdraft_bench.result import Row
from blockdraft_bench.statistics import Estimate


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (Estimate(2.0, (1.5, 2.25), 8), (2.0, 0.5, 0.25)),
        (Estimate(2.0, (2.1, 2.5), 8), (2.0, 0.0, 0.5)),  # percentiles can miss the value
        (Estimate(2.0, (1.0, 1.9), 8), (2.0, 1.0, 0.0)),
        ({"median": 3.0, "quartiles": (2.0, 5.0)}, (3.0, 1.0, 2.0)),
    ],
)
def test_ranges(number: object, expected: tuple[float, float, float]) -> None:
    assert value_and_range(number) == expected


@pytest.mark.parametrize("number", [2.0, Estimate(2.0, None, 1)])
def test_no_interval_has_no_range(number: object) -> None:
    # Of length 0 it would look like certainty.
    value, *edges = value_and_range(number)
    assert value == 2.0
    assert all(map(math.isnan, edges))


def test_bars_over_names_and_curves_over_numbers() -> None:
    rows: list[Row] = [
        {"set": name, "k": float(k), "T": 0.5, "speed": k if name == "a" else None}
        for name in "ab"
        for k in (1, 2)
    ]
    [bars] = draw(rows, "set", "speed", ["T"]).axes
    assert [label.get_text() for label in bars.get_xticklabels()] == ["a", "b"]
    heights = [patch.get_height() for patch in bars.patches if isinstance(patch, Rectangle)]
    assert heights == [1.0, 2.0]
    [curves] = draw(rows, "k", "speed", ["set"], log=True).axes
    assert np.array_equal(curves.get_lines()[0].get_xydata(), [[1.0, 1.0], [2.0, 2.0]])
    legend = curves.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["set a"]
    assert curves.get_xscale() == curves.get_yscale() == "log"
    assert draw([], "set", "speed", ["T"]).axes
