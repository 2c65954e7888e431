from blockdraft_runtime.channel import BackoffPolicy
from blockdraft_server.supervise.supervisor import RestartPolicy, RestartTracker


def tracker(policy: RestartPolicy | None = None) -> RestartTracker:
    """Return one whose pauses are half of the longest."""
    return RestartTracker(policy or RestartPolicy(), lambda: 0.0)


def early(tracked: RestartTracker, *deaths: float) -> list[float | None]:
    return [tracked.died(death, None) for death in deaths]


def test_pauses_double_up_to_the_longest() -> None:
    tracked = tracker(RestartPolicy(backoff=BackoffPolicy(2.0, 60.0)))
    pauses = early(tracked, *(100.0 * index for index in range(7)))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_fifth_early_death_within_a_minute_is_final() -> None:
    assert early(tracker(), 0.0, 10.0, 20.0, 30.0, 59.9) == [0.25, 0.5, 1.0, 2.0, None]
    # Older ones are forgiven.
    later = early(tracker(), 0.0, 10.0, 20.0, 30.0, 60.0, 61.0)
    assert [pause is None for pause in later] == [False] * 5 + [True]


def test_having_been_ready_forgives_early_deaths() -> None:
    tracked = tracker()
    early(tracked, 0.0, 1.0, 2.0, 3.0)
    assert tracked.died(5.0, ready_since=4.0) == 4.0
    assert None not in early(tracked, 6.0, 7.0, 8.0, 9.0)
    assert early(tracked, 10.0) == [None]


def test_a_long_life_starts_over_with_the_first_pause() -> None:
    tracked = tracker()
    early(tracked, 0.0)
    assert tracked.died(50.0, ready_since=1.0) == 0.5
    assert tracked.died(200.0, ready_since=60.0) == 0.25
