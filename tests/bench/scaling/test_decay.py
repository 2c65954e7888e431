"""The decay of acceptance: recovered from known ones, and τ against drafts thrown as dice."""

import numpy as np
import pytest

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.scaling.decay import Decay, fit_decay


def expected_counts(decay: Decay, drafted: int, verifications: int) -> np.ndarray:
    """Return the counts of infinitely many verifications, scaled."""
    survival = np.cumprod([decay.first * decay.rate**k for k in range(drafted)])
    return verifications * np.concatenate([[1.0], survival])[None]


def simulated_counts(
    decay: Decay, drafted: int, answers: int, steps: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the counts of each answer, drafting token by token."""
    counts = np.zeros((answers, drafted + 1), np.int64)
    chances = [decay.first * decay.rate**k for k in range(drafted)]
    for row in counts:
        for _ in range(steps):
            row[0] += 1
            for position, chance in enumerate(chances, 1):
                if rng.random() >= chance:
                    break
                row[position] += 1
    return counts


@pytest.mark.parametrize(
    "decay", [Decay(0.8, 0.9), Decay(0.3, 1.05), Decay(0.95, 1.0), Decay(0.5, 0.05)], ids=str
)
def test_recovers_a_decay_from_its_expectation(decay: Decay) -> None:
    fit = fit_decay(expected_counts(decay, 7, 10**12), per_answer=False, seed=0)
    assert fit.decay.first == pytest.approx(decay.first, rel=1e-6)
    assert fit.decay.rate == pytest.approx(decay.rate, rel=1e-5)
    assert fit.largest_error < 1e-5


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    truth, rng = Decay(0.75, 0.9), np.random.default_rng(0)
    trials, hits = 16, np.zeros(2)
    for trial in range(trials):
        counts = simulated_counts(truth, 5, 20, 15, rng)
        fit = fit_decay(counts, per_answer=True, seed=trial, resamples=200)
        for index, (found, value) in enumerate(
            zip((fit.first, fit.rate), (truth.first, truth.rate), strict=True)
        ):
            assert found.answers == 20
            assert found.value is not None
            assert found.ci95 is not None
            low, high = found.ci95
            assert low < found.value < high
            hits[index] += low < value < high
    assert (hits / trials > 0.75).all()


def test_a_geometric_decay_fits_and_another_shape_does_not() -> None:
    rng = np.random.default_rng(1)
    good = fit_decay(simulated_counts(Decay(0.7, 0.9), 6, 40, 50, rng), per_answer=False, seed=0)
    assert good.degrees_of_freedom == 4
    assert good.deviance < 15  # 0.5 % of such sums exceed this.
    # Conditional acceptance 0.9, 0.2, 0.9, 0.2.
    bad = fit_decay(np.array([[1000, 900, 180, 162, 32]]), per_answer=False, seed=0)
    assert bad.degrees_of_freedom == 2
    assert bad.deviance > 500


def test_deviance_by_hand() -> None:
    # Two positions: two numbers fit them exactly.
    exact = fit_decay(np.array([[10, 5, 2]]), per_answer=False, seed=0)
    assert (exact.decay.first, exact.decay.rate) == pytest.approx((0.5, 0.8), rel=1e-6)
    assert exact.deviance == pytest.approx(0.0, abs=1e-6)
    assert (exact.degrees_of_freedom, exact.reached) == (0, (10, 5, 2))


def test_bounds_hold_at_the_edges() -> None:
    perfect = fit_decay(np.array([[10, 10, 10]]), per_answer=False, seed=0)
    assert perfect.decay.acceptance_length(9) == pytest.approx(9.0, abs=1e-6)
    hopeless = fit_decay(np.array([[10, 1, 0, 0]]), per_answer=False, seed=0)
    assert hopeless.decay.first == pytest.approx(0.1)
    assert hopeless.decay.acceptance_length(4) == pytest.approx(1.1, abs=1e-6)
    # Better with every position: capped at certainty.
    rising = Decay(0.5, 1.5)
    assert rising.conditional(4).tolist() == [0.5, 0.75, 1.0, 1.0]


def test_acceptance_length_by_hand_and_by_dice() -> None:
    decay = Decay(0.8, 0.5)
    assert decay.acceptance_length(1) == 1.0
    assert decay.acceptance_length(2) == pytest.approx(1.8)
    assert decay.acceptance_length(4) == pytest.approx(1 + 0.8 + 0.8 * 0.4 + 0.8 * 0.4 * 0.2)
    thrown = Decay(0.85, 0.95)
    counts = simulated_counts(thrown, 7, 1, 40000, np.random.default_rng(2)).sum(axis=0)
    # A verification gains its own token and one for each accepted: deviation of the mean 0.013.
    assert counts.sum() / counts[0] == pytest.approx(thrown.acceptance_length(8), abs=0.05)


def test_few_answers_have_no_interval() -> None:
    counts = np.array([[10, 5, 2]] * 7)
    fit = fit_decay(counts, per_answer=True, seed=0)
    found = (fit.first, fit.rate, fit.acceptance_length(8))
    assert [(each.ci95, each.answers) for each in found] == [(None, 7)] * 3
    assert fit.acceptance_length(3).value == pytest.approx(1.7)
    # Rows that are not answers are not resampled, however many they are.
    pooled = fit_decay(np.array([[10, 5, 2]] * 8), per_answer=False, seed=0)
    assert (pooled.first.ci95, pooled.first.answers) == (None, None)


@pytest.mark.parametrize(
    ("counts", "message"),
    [([[10, 5]], "drafts of at least two tokens"), ([[10, 0, 0]], "no decay to fit")],
)
def test_says_why_there_is_nothing_to_fit(counts: list[list[int]], message: str) -> None:
    with pytest.raises(BenchUsageError, match=message):
        fit_decay(np.array(counts), per_answer=True, seed=0)
