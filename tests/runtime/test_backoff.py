import random

from hypothesis import given
from hypothesis import strategies as st

from blockdraft_runtime.channel import Backoff, BackoffPolicy

POLICIES = st.tuples(st.floats(0.001, 10), st.floats(1, 1000)).map(
    lambda pair: BackoffPolicy(pair[0], pair[0] * pair[1])
)
DRAWS = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40)


def pauses(policy: BackoffPolicy, draws: list[float]) -> list[float]:
    backoff = Backoff(policy, iter(draws).__next__)
    return [backoff.pause_seconds() for _ in draws]


@given(POLICIES, DRAWS)
def test_each_pause_is_from_the_second_half_of_a_range_that_doubles(
    policy: BackoffPolicy, draws: list[float]
) -> None:
    for index, pause in enumerate(pauses(policy, draws)):
        longest = min(policy.initial_seconds * 2.0**index, policy.max_seconds)
        assert longest / 2 <= pause <= longest


@given(POLICIES, DRAWS, DRAWS)
def test_a_success_starts_over(
    policy: BackoffPolicy, before: list[float], after: list[float]
) -> None:
    backoff = Backoff(policy, iter(before + after).__next__)
    for _ in before:
        backoff.pause_seconds()
    backoff.reset()
    assert [backoff.pause_seconds() for _ in after] == pauses(policy, after)


def test_callers_that_fail_together_do_not_come_back_together() -> None:
    """Without jitter all hundred would try again in the same instant, however often they fail."""
    policy = BackoffPolicy(initial_seconds=0.5, max_seconds=30.0)
    callers = [Backoff(policy, random.Random(seed).random) for seed in range(100)]
    times = [0.0] * len(callers)
    for failures in range(1, 6):
        times = [time + caller.pause_seconds() for time, caller in zip(times, callers, strict=True)]
        tenth = min(0.5 * 2**failures, 60.0) / 20
        assert max(sum(abs(time - other) < tenth / 2 for other in times) for time in times) < 50


def test_an_endless_series_of_failures_does_not_overflow() -> None:
    assert pauses(BackoffPolicy(0.5, 30.0), [0.0] * 5000)[-1] == 15.0
