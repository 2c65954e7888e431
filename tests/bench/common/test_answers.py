"""Where answers differ, and which of their verifications measure a drafter."""

import pytest

from blockdraft_bench.common.answers import Answer, divergences


def test_only_whole_proposals_that_reached_no_stop_token_count() -> None:
    steps = ((3, 2), (0, 0), (2, 2), (3, 3))
    assert Answer((1,), steps, stopped=False).full_steps(3) == (2, 3)
    assert Answer((1,), steps, stopped=True).full_steps(3) == (2,)
    assert Answer((1,), (), stopped=True).full_steps(3) == ()


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
    same, one, other = (Answer(tuple(t), (), False) for t in ([], tokens, expected))
    found = [] if place is None else [(1, place)]
    assert list(divergences([same, one], [same, other])) == found
