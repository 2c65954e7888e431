"""The arithmetic of acceptance, on made-up answers."""

import numpy as np
import pytest

from blockdraft_bench.acceptance.statistics import Estimate, reach_counts, summarize
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.bootstrap import percentile_interval, resampled_totals


def answer(*accepted: int, stopped: bool = False, tokens: tuple[int, ...] = (1,)) -> Answer:
    return Answer(tokens, tuple((3, count) for count in accepted), stopped)


def test_only_whole_proposals_that_reached_no_stop_token_count() -> None:
    steps = ((3, 2), (0, 0), (2, 2), (3, 3))
    assert Answer((1,), steps, stopped=False).full_steps(3) == (2, 3)
    assert Answer((1,), steps, stopped=True).full_steps(3) == (2,)
    assert Answer((1,), (), stopped=True).full_steps(3) == ()


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
    assert [e.value for e in result.per_position] == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert [e.value for e in result.conditional] == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert [e.value for e in result.decay] == pytest.approx([8 / 9, 3 / 4])
    assert result.identical_share == 0.5
    # Only one or the other answer, or both: means of 7/3, 3 or 10/4.
    assert list(result.acceptance_length.ci95 or ()) == pytest.approx([7 / 3, 3.0])


def test_without_whole_proposals_there_is_nothing_to_say() -> None:
    answers = [Answer((1, 2), ((1, 1),), False)] * 2
    result = summarize("set", 0.0, answers, answers, draft_length=2, seed=0)
    assert result.steps == 0
    assert result.acceptance_length == Estimate(None, None)
    assert result.per_position == (Estimate(None, None),) * 2
    assert result.identical_share == 1.0


def test_one_answer_has_no_interval() -> None:
    result = summarize("set", 0.0, [answer(1, 3)], [answer()], draft_length=3, seed=0)
    assert result.acceptance_length == Estimate(3.0, None)


def test_intervals_bracket_the_truth_about_as_often_as_they_say() -> None:
    # Answers with a mean of their own, as real ones have: verifications are not independent.
    rng = np.random.default_rng(0)
    hits, trials, right = 0, 60, 0.6
    for trial in range(trials):
        means = np.clip(rng.normal(right, 0.15, 40), 0, 1)
        answers = [
            Answer((1,), tuple((1, int(r < p)) for r in rng.random(25)), False) for p in means
        ]
        result = summarize("set", 0.0, answers, answers, draft_length=1, seed=trial)
        low, high = result.acceptance_length.ci95 or (0.0, 0.0)
        assert low < (result.acceptance_length.value or 0.0) < high
        hits += low < 1 + right < high
    assert 0.85 < hits / trials < 1.0


def test_the_bootstrap_is_seeded() -> None:
    counts = np.arange(20).reshape(10, 2)
    first = resampled_totals(counts, 3)
    assert np.array_equal(first, resampled_totals(counts, 3))
    assert not np.array_equal(first, resampled_totals(counts, 4))
    assert first.mean(axis=0) == pytest.approx(counts.sum(axis=0), rel=0.02)


def test_percentiles_leave_undefined_resamples_out() -> None:
    values = np.array([np.nan, *np.linspace(0.0, 1.0, 101)])
    assert percentile_interval(values) == pytest.approx((0.025, 0.975))
    assert percentile_interval(np.array([np.nan])) is None
