"""How long steps take, learned from what they took."""

import random

import pytest

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.engine.step_times import TIME_LEARNING_RATE, StepTimes

SECONDS = {Bucket(4, tokens, tokens): tokens / 4 for tokens in (4, 8, 16, 32)}
CONTEXT_SECONDS = {bucket: seconds / 100 for bucket, seconds in SECONDS.items()}


def test_a_step_teaches_its_own_shape_only() -> None:
    steps = StepTimes(SECONDS, {})
    steps.observe(3, 13, 5.0)
    assert steps.of(4, 16) == pytest.approx(4.0 + TIME_LEARNING_RATE)
    assert [steps.of(4, tokens) for tokens in (8, 32)] == [2.0, 8.0]


def test_a_long_context_teaches_nothing_of_short_ones() -> None:
    steps = StepTimes(SECONDS, CONTEXT_SECONDS)
    for context in (50, 200, 1000):
        steps.observe(4, 16, 4.0 + context * 0.04, context)
    assert steps.of(4, 16) == pytest.approx(4.0)
    assert steps.of(4, 16, 100) == pytest.approx(8.0)


@pytest.mark.parametrize(("short", "of_context"), [(6.0, 0.06), (6.0, 0.04), (4.0, 0.01)])
def test_times_that_change_are_noticed_at_any_context(short: float, of_context: float) -> None:
    chance = random.Random(0)
    steps = StepTimes(SECONDS, CONTEXT_SECONDS)
    for _ in range(1000):
        context = chance.choice((0, 30, 100, 300))
        steps.observe(4, 16, short + context * of_context, context)
    for context in (0, 100, 300):
        expected = short + context * of_context
        assert steps.of(4, 16, context) == pytest.approx(expected, rel=0.05)


def test_a_shape_that_no_context_slowed_learns_as_without() -> None:
    steps = StepTimes(SECONDS, {})
    for _ in range(100):
        steps.observe(4, 16, 5.0, 1000)
    assert steps.of(4, 16) == pytest.approx(5.0)


def test_steps_that_take_no_time_can_be_learned_from() -> None:
    steps = StepTimes(dict.fromkeys(SECONDS, 0.0), {})
    steps.observe(4, 16, 0.0, 100)
    steps.observe(4, 16, 1.0, 100)
    assert steps.of(4, 16) == 0.0  # no more than a larger one
    assert steps.by_bucket[Bucket(4, 16, 16)] == TIME_LEARNING_RATE


def test_no_step_takes_longer_than_a_larger_one() -> None:
    steps = StepTimes(SECONDS, CONTEXT_SECONDS)
    steps.observe(4, 4, 1e6)
    assert steps.of(4, 4) == 2.0
    assert steps.of(4, 4, 100) == 4.0
