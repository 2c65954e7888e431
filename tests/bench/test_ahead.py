"""What is counted as an outcome of a verification, and which of them are prepared."""

from collections import Counter

import numpy as np
import pytest

from blockdraft_bench.ahead import (
    DRAFT_LENGTH,
    accepted,
    ahead_and_fresh,
    likeliest,
    outcomes,
    table,
)

PLACES = 2 * DRAFT_LENGTH + 2


def ranks(rows: dict[int, list[int]], positions: int = PLACES + 5) -> np.ndarray:
    """Return ranks of 9, but for the first places of some positions."""
    values = np.full((positions, PLACES), 9)
    for position, row in rows.items():
        values[position, : len(row)] = row
    return values


@pytest.mark.parametrize(
    ("row", "count"),
    [([0, 0, 1, 0], 2), ([3], 0), ([0] * DRAFT_LENGTH, DRAFT_LENGTH), ([0] * 9, 7)],
)
def test_a_draft_is_accepted_up_to_its_first_wrong_token(row: list[int], count: int) -> None:
    assert accepted(ranks({0: row})[0]) == count


def test_the_drafters_own_choice_is_ruled_out_where_it_was_wrong() -> None:
    # Two right, then the second choice; then all seven right, and the first choice after them.
    seen = list(outcomes(ranks({0: [0, 0, 1], 3: [0] * 8})))
    assert seen[:2] == [(0, 2, 0), (3, 7, 0)]


def test_the_likeliest_outcomes_are_prepared() -> None:
    seen = Counter({(0, 0): 5, (0, 1): 4, (2, 0): 3, (0, 2): 2, (7, 0): 1})
    assert likeliest(seen, 4) == [3, 0, 1, 0, 0, 0, 0, 0]


def test_a_draft_ahead_goes_on_where_the_first_one_was_right() -> None:
    # From position 0 one is right, the next is the second choice, and two after it are right too;
    # the draft that begins anew at position 2 has three.
    rows = ranks({0: [0, 1, 0, 0, 5], 2: [0, 0, 0, 4]})
    assert list(ahead_and_fresh(rows, [0, 1, 0, 0, 0, 0, 0, 0]))[:1] == [(3, 4)]
    assert list(ahead_and_fresh(rows, [0] * 8)) == []


def test_the_table_says_what_share_was_foreseen() -> None:
    lines = table([ranks({0: [0, 1, 0, 0, 5], 2: [0, 0, 0, 4]})]).splitlines()
    assert lines[0] == "2 verifications, 3.00 tokens"
    # Of two outcomes as frequent as each other the one with fewer accepted tokens.
    assert lines[1] == "  1 prepared: 50% foreseen, 3.00 tokens by drafts ahead, 4.00 by fresh ones"
