from blockdraft_runtime.channel import BackoffPolicy
from blockdraft_server.supervise.supervisor import RestartPolicy, RestartTracker


def shortest() -> float:
    """Return the draw that makes each pause half of the longest."""
    return 0.0


def test_pauses_double_up_to_the_longest() -> None:
    policy = RestartPolicy(backoff=BackoffPolicy(2.0, 60.0))
    tracker = RestartTracker(policy, shortest)
    deaths = [100.0 * index for index in range(7)]
    pauses = [tracker.died(death, None) for death in deaths]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_fifth_early_death_within_a_minute_is_final() -> None:
    tracker = RestartTracker(RestartPolicy(), shortest)
    pauses = [tracker.died(death, None) for death in (0.0, 10.0, 20.0, 30.0, 59.9)]
    assert pauses == [0.25, 0.5, 1.0, 2.0, None]


def test_early_deaths_older_than_a_minute_are_forgiven() -> None:
    tracker = RestartTracker(RestartPolicy())
    deaths = (0.0, 10.0, 20.0, 30.0, 60.0)
    assert None not in [tracker.died(death, None) for death in deaths]
    assert tracker.died(61.0, None) is None


def test_having_been_ready_forgives_early_deaths() -> None:
    tracker = RestartTracker(RestartPolicy(), shortest)
    for death in (0.0, 1.0, 2.0, 3.0):
        tracker.died(death, None)
    assert tracker.died(5.0, ready_since=4.0) == 4.0
    for death in (6.0, 7.0, 8.0, 9.0):
        assert tracker.died(death, None) is not None
    assert tracker.died(10.0, None) is None


def test_a_long_life_starts_over_with_the_first_pause() -> None:
    tracker = RestartTracker(RestartPolicy(), shortest)
    tracker.died(0.0, None)
    assert tracker.died(50.0, ready_since=1.0) == 0.5
    assert tracker.died(200.0, ready_since=60.0) == 0.25
