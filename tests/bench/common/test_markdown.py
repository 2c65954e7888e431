"""Tables: every kind of cell, and intervals that say what they rest on."""

import pytest

from blockdraft_bench.common.markdown import bullets, number, page, share, table
from blockdraft_bench.common.statistics import Estimate


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
        (Estimate(2.5, None, 1), "2.50x"),
        (Estimate(2.5, (2.0, 3.0), 7), "2.50x"),
        (Estimate(2.5, (2.0, 3.0), 8), "2.50x [2.00, 3.00; n = 8]"),
        (Estimate(2.5, (2.0, 3.0)), "2.50x [2.00, 3.00]"),
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
