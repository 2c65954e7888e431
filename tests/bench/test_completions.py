"""Where completions differ, and ratios of speeds."""

import pytest

from blockdraft_bench.completions import CompletionRecord, divergences, speed_ratio
from blockdraft_bench.statistics import Estimate


@pytest.mark.parametrize(
    ("tokens", "expected", "place"),
    [
        ([1, 2], [1, 2], None),
        ([1, 3], [1, 2], 1),
        ([1], [1, 2], 1),
        ([1, 2], [1], 1),
        ([4], [5], 0),
        ([1, 5, 3], [1, 2, 3], 1),
        ([], [], None),
    ],
)
def test_where_answers_differ(tokens: list[int], expected: list[int], place: int | None) -> None:
    same, one, other = (CompletionRecord(tuple(t)) for t in ([], tokens, expected))
    found = [] if place is None else [(1, place)]
    assert list(divergences([same, one], [same, other])) == found


def timed(seconds: float) -> CompletionRecord:
    return CompletionRecord((0, 0, 0, 0, 0), seconds)


def test_the_interval_of_a_ratio_draws_prompts_with_both_answers() -> None:
    # One prompt is 10 times as slow as the other for both: their ratio is 2 whatever is drawn.
    own, other = [timed(1.0), timed(10.0)] * 4, [timed(2.0), timed(20.0)] * 4
    assert speed_ratio(own, other, seed=3) == Estimate(2.0, (2.0, 2.0), 8)
    # Where the prompts disagree, it lies between one's ratio and the other's.
    estimate = speed_ratio(own, [timed(2.0), timed(10.0)] * 4, seed=3)
    assert estimate.value == pytest.approx(12 / 11)
    low, high = estimate.ci95 or (0.0, 0.0)
    assert 1.0 <= low < 12 / 11 < high <= 2.0
