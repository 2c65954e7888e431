"""The arithmetic of acceptance, on made-up answers."""

import pytest

from blockdraft_bench.acceptance.statistics import reach_counts, summarize
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.statistics import Estimate


def answer(*accepted: int, stopped: bool = False, tokens: tuple[int, ...] = (1,)) -> Answer:
    return Answer(tokens, tuple((3, count) for count in accepted), stopped)


def test_reach_counts() -> None:
    counts = reach_counts([answer(0, 1, 3), answer(), answer(2)], 3)
    assert counts.tolist() == [[3, 2, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]


def test_figures_by_hand() -> None:
    drafted = [answer(0, 1, 3, tokens=(1, 2)), answer(2, tokens=(3,))]
    plain = [answer(tokens=(1, 2)), answer(tokens=(4,))]
    result = summarize("set", 1.0, drafted, plain, draft_length=3, seed=0)
    assert (result.dataset, result.temperature) == ("set", 1.0)
    assert (result.samples, result.tokens, result.steps, result.verifications) == (2, 3, 4, 4)
    assert result.acceptance_length.value == pytest.approx(10 / 4)
    assert [e.value for e in result.acceptance_per_position] == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert [e.value for e in result.conditional_acceptance_per_position] == pytest.approx(
        [3 / 4, 2 / 3, 1 / 2]
    )
    assert [e.value for e in result.acceptance_decay] == pytest.approx([8 / 9, 3 / 4])
    assert result.identical_share == 0.5
    assert result.acceptance_length.ci95 is None
    # Of four times as many answers a resample has mostly the one or the other: means of 7/3 or 3.
    more = summarize("set", 1.0, drafted * 4, plain * 4, draft_length=3, seed=0)
    assert more.acceptance_length.value == result.acceptance_length.value
    low, high = more.acceptance_length.ci95 or (0.0, 0.0)
    assert 7 / 3 <= low < 10 / 4 < high <= 3.0


def test_each_position_rests_on_the_answers_that_reached_it() -> None:
    drafted = [answer(3), answer(1, 0), answer(0), answer()]
    result = summarize("set", 0.0, drafted, drafted, draft_length=3, seed=0)
    assert result.acceptance_length.answers == 3
    assert [e.answers for e in result.acceptance_per_position] == [3, 3, 3]
    assert [e.answers for e in result.conditional_acceptance_per_position] == [3, 2, 1]


def test_without_whole_proposals_there_is_nothing_to_say() -> None:
    answers = [Answer((1, 2), ((1, 1),), False)] * 2
    result = summarize("set", 0.0, answers, answers, draft_length=2, seed=0)
    assert result.steps == 0
    assert result.acceptance_length == Estimate(None, None, 0)
    assert result.acceptance_per_position == (Estimate(None, None, 0),) * 2
    assert result.identical_share == 1.0


def test_one_answer_has_no_interval() -> None:
    result = summarize("set", 0.0, [answer(1, 3)], [answer()], draft_length=3, seed=0)
    assert result.acceptance_length == Estimate(3.0, None, 1)
