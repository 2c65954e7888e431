"""The target that computes nothing: what it makes up, and what it says that took."""

import itertools

import ml_dtypes
import pytest

from blockdraft_bench.engine.instant_runner import InstantRunner, acceptance_for
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import all_buckets
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.runner import StepRunner
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, Sequence

SETTINGS = EngineSettings(
    scheduler=SchedulerSettings(max_sequences=4, max_step_tokens=64, max_context_tokens=64),
    num_pages=16,
)
SEQUENCE = Sequence(1, GenerationRequest("a", (1, 2, 3)), arrival_time=0.0)


def row(known: int, drafted: int) -> Row:
    return Row(SEQUENCE, 0, (7,) * (known + drafted), drafted)


@pytest.mark.parametrize(
    ("mean", "drafted", "expected"),
    # p; p + p²; p + p² + p³ at p = 1/2; and all or next to nothing.
    [(0.25, 1, 0.25), (0.75, 2, 0.5), (0.875, 3, 0.5), (15.0, 15, 1.0), (1e-9, 15, 1e-9)],
)
def test_acceptance_by_hand(mean: float, drafted: int, expected: float) -> None:
    assert acceptance_for(mean, drafted) == pytest.approx(expected)


def test_accepts_as_many_as_told_on_average() -> None:
    runner = InstantRunner(SETTINGS, 8, acceptance_for(4.0, 15))
    runner.warm_up(FeatureForm((0,)), 16)
    found = [result.accepted for _ in range(1000) for result in runner.run([row(1, 15)] * 4).rows]
    assert runner.drafted == 60
    # The mean of 4000 draws with a deviation of 4.1 is within five of its deviations.
    assert sum(found) / len(found) == pytest.approx(4, abs=0.33)
    assert {min(found), max(found)} == {0, 15}


def test_features_are_those_of_the_final_positions() -> None:
    runner = InstantRunner(SETTINGS, 8, acceptance=1.0)
    assert isinstance(runner, StepRunner)
    assert runner.feature_width == 0
    assert not runner.compiled_for(FeatureForm((0,)), 16)
    seconds = runner.warm_up(FeatureForm((0,)), 16).seconds
    assert tuple(seconds) == all_buckets(4, 64, 16)
    assert len(set(seconds.values())) == 1
    assert runner.compiled_for(FeatureForm((0,)), 16)
    assert runner.feature_width == 8
    result = runner.run([row(5, 0), row(1, 3)])
    assert [each.accepted for each in result.rows] == [0, 3]
    assert [each.shape for each in result.features] == [(5, 8), (4, 8)]
    assert all(each.dtype == ml_dtypes.bfloat16 for each in result.features)
    assert result.log_probs == [[], []]
    runner.warm_up(NO_FEATURES, 1)
    assert runner.feature_width == 0
    assert runner.run([row(2, 0)]).features[0].shape == (2, 0)


def test_counts_the_time_of_its_steps() -> None:
    ticks = itertools.count()
    runner = InstantRunner(SETTINGS, 8, 0.5, clock=lambda: float(next(ticks)))
    runner.warm_up(NO_FEATURES, 1)
    runner.run([row(1, 0)])
    runner.run([row(1, 0)])
    assert runner.seconds == 2.0
