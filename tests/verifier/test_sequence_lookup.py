"""What is said of a prediction after the fact, and that a match is followed."""

import random

from hypothesis import given
from hypothesis import strategies as st

from blockdraft_verifier.lookup import LONGEST_MATCH, Outcome, SequenceLookup


def grown(*, tokens: list[int]) -> SequenceLookup:
    lookup = SequenceLookup(tokens)
    lookup.index(len(tokens) + 1)
    return lookup


def test_an_outcome_says_how_far_a_prediction_went() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 1, 2]
    lookup = grown(tokens=tokens)
    assert lookup.look() is None
    assert lookup.match_length == 2
    assert lookup.continuation(3) == (3, 4, 5)
    tokens += [3, 4, 8]
    assert lookup.look() == Outcome(2, right=2, missed=True)
    assert lookup.match_length == 0
    assert lookup.continuation(3) == ()


def test_nothing_came_means_nothing_learned() -> None:
    tokens = [1, 2, 3, 1, 2]
    lookup = grown(tokens=tokens)
    lookup.look()
    assert lookup.look() is None
    assert lookup.continuation(1) == (3,)


def test_a_match_is_followed_though_nothing_was_indexed_since() -> None:
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(80)]
    tokens = [*text, *text[:3]]
    lookup = grown(tokens=tokens)
    lookup.look()
    for step in range(3, 70, 4):
        assert lookup.match_length == min(step, LONGEST_MATCH)
        assert lookup.continuation(4) == tuple(text[step : step + 4])
        tokens += text[step : step + 4]
        assert lookup.look() == Outcome(min(step, LONGEST_MATCH), right=4, missed=False)


@given(
    st.lists(st.integers(0, 2), min_size=3, max_size=80),
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
)
def test_outcomes_agree_with_what_was_predicted(text: list[int], steps: list[int]) -> None:
    tokens = text[:3]
    lookup = grown(tokens=tokens)
    lookup.look()
    for step in steps:
        new = text[len(tokens) : len(tokens) + step]
        predicted, length = lookup.continuation(len(new)), lookup.match_length
        tokens += new
        lookup.index(len(new))
        outcome = lookup.look()
        if not predicted or not new:
            assert outcome is None
        else:
            right = next((i for i, token in enumerate(new) if predicted[i] != token), len(new))
            assert outcome == Outcome(length, right, missed=right < len(new))
