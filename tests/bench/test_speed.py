"""The arithmetic of decoding speed, against numbers computed by hand."""

import math
from dataclasses import replace

import pytest
from tests.bench.support import decoded_answer, decoded_set

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.decode import averages, summarize
from blockdraft_bench.result import ResultRow
from blockdraft_bench.statistics import Estimate

# Plain: 4 tokens in 2 s, 2 tokens in 2 s. Drafted: 4 in 1 s, 2 in 0.5 s, over 2 + 1 steps.
FIRST = {
    "plain": decoded_answer(2.0, (1, 2, 3, 4, 5), *[(0, 0)] * 4),
    "dflash": decoded_answer(1.0, (1, 2, 3, 4, 5), (3, 2), (1, 0)),
}
SECOND = {
    "plain": decoded_answer(2.0, (6, 7, 8), (0, 0), (0, 0)),
    "dflash": decoded_answer(0.5, (6, 7, 9), (1, 1)),
}


def summary(method: str, *samples: dict[str, CompletionRecord]) -> ResultRow:
    return summarize(decoded_set(*samples), method, seed=0)


def test_quartiles() -> None:
    # Seconds a token: 1, 2, 3, 4, 10.
    samples = [{"plain": decoded_answer(s, (1, 2), (0, 0))} for s in (4.0, 1.0, 10.0, 2.0, 3.0)]
    result = summary("plain", *samples)
    assert result["tpot_seconds"] == 3.0
    assert result["tpot_seconds_quartiles"] == (2.0, 4.0)
    assert result["tokens_per_second"] == pytest.approx(5 / 20)


def test_speedup_is_a_ratio_of_sums() -> None:
    result = summary("dflash", FIRST, SECOND)
    # 4 s for 6 tokens over 1.5 s for 6 tokens; the mean of the samples' ratios would be 3.
    assert result["speedup"].value == pytest.approx(4 / 1.5)
    # The samples' speed-ups are 2 and 4; of four times as many, a resample has more of the one or
    # of the other.
    low, high = summary("dflash", *[FIRST, SECOND] * 4)["speedup"].ci95 or (0.0, 0.0)
    assert 2.0 <= low < 4 / 1.5 < high <= 4.0
    # Completions of other lengths: 4 s for 6 tokens over 1.5 s for 4 tokens.
    short = {**FIRST, "dflash": decoded_answer(1.0, (1, 2, 9), (3, 1))}
    assert summary("dflash", short, SECOND)["speedup"].value == pytest.approx((4 / 6) / (1.5 / 4))


def test_plain_decoding_is_its_own_measure() -> None:
    result = summary("plain", *[FIRST, SECOND] * 4)
    assert result["speedup"] == Estimate(1.0, (1.0, 1.0), 8)
    assert result["acceptance_length"] == Estimate(1.0, (1.0, 1.0), 8)
    assert result["acceptance_per_position"] == []
    assert result["mean_draft_length"] == 0.0
    assert result["identical_share"] == 1.0


def test_acceptance() -> None:
    result = summary("dflash", FIRST, SECOND)
    # 4 + 2 tokens from 2 + 1 verifications; each completion alone gives 2.
    assert result["acceptance_length"].value == pytest.approx(2.0)
    assert result["acceptance_length"].completions == 2
    # Position 1: right in the first and third of three. Position 2 and 3: drafted once.
    assert result["acceptance_per_position"] == pytest.approx([2 / 3, 1.0, 0.0])
    assert result["mean_draft_length"] == pytest.approx((3 + 1 + 1) / 3)
    assert result["identical_share"] == 0.5


def test_positions_that_were_never_drafted_tell_nothing() -> None:
    assert summary("dflash", SECOND)["acceptance_per_position"] == [1.0]


def test_differences_are_named() -> None:
    assert summary("dflash", FIRST, SECOND)["divergences"] == [{"sample_id": "s1", "position": 2}]


def test_answers_of_one_token_have_no_speed() -> None:
    single = decoded_answer(0.0, (1,))
    result = summary("dflash", {"plain": single, "dflash": single})
    assert (
        result["tpot_seconds"] is result["tokens_per_second"] is result["mean_draft_length"] is None
    )
    assert result["tpot_seconds_quartiles"] is None
    assert result["speedup"] == result["acceptance_length"] == Estimate(None, None, 0)
    # Beside others they change no speed, and are none of the answers it rests on.
    both = summary("dflash", {"plain": single, "dflash": single}, FIRST)
    assert both["speedup"].completions == 1
    assert both["speedup"].value == pytest.approx(2.0)
    assert both["tpot_seconds"] == pytest.approx(0.25)


def test_averages() -> None:
    # 4 s over 1.5 s, 2 tokens a step; and 2 s over 1 s, 2 tokens a step, in another dataset.
    both = replace(decoded_set(FIRST, SECOND), dataset="both")
    sets = [both, decoded_set(FIRST)]
    [mean] = averages(sets, seed=0)
    assert (mean["method"], mean["temperature"]) == ("dflash", 0.0)
    assert mean["speedup"].value == pytest.approx(math.sqrt(4 / 1.5 * 2.0))
    assert mean["acceptance_length"].value == pytest.approx(2.0)
    assert mean["identical_share"] == pytest.approx((0.5 + 1) / 2)
    # Two completions and one are too few for an interval, also together.
    assert (mean["speedup"].ci95, mean["speedup"].completions) == (None, 3)


def test_the_interval_of_an_average_draws_from_all_datasets() -> None:
    sets = [decoded_set(FIRST, SECOND), decoded_set(FIRST, FIRST, SECOND, SECOND)] * 3
    [mean] = averages(sets, seed=0)
    low, high = mean["speedup"].ci95 or (0.0, 0.0)
    # The samples' speed-ups are 2 and 4, and no dataset has one kind alone.
    assert 2.0 < low < 4 / 1.5 < high < 4.0
    assert mean["speedup"].value == pytest.approx(4 / 1.5)
    assert mean["speedup"].completions == 18


def test_averages_keep_methods_and_temperatures_apart() -> None:
    sets = [decoded_set(FIRST), decoded_set(SECOND, temperature=1.0)]
    means = averages(sets, seed=0)
    assert {(a["method"], a["temperature"]): a["speedup"].value for a in means} == {
        ("dflash", 0.0): pytest.approx(2.0),
        ("dflash", 1.0): pytest.approx(4.0),
    }
