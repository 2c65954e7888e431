from blockdraft_verifier.engine.guards import OVERDUE_FACTOR, StepWatch


def test_steps_may_take_their_time_and_no_more() -> None:
    now = [0.0]
    watch = StepWatch(10.0, lambda: now[0])
    assert not watch.overdue
    with watch.step():
        now[0] += 10.0
        assert not watch.overdue
        now[0] += 1.0
        assert watch.overdue
    assert not watch.overdue


def test_slow_targets_have_longer() -> None:
    now = [0.0]
    watch = StepWatch(10.0, lambda: now[0])
    watch.expect(3.0)
    with watch.step():
        now[0] += OVERDUE_FACTOR * 3.0
        assert not watch.overdue
        now[0] += 1.0
        assert watch.overdue
    # What ends by an error has ended.
    try:
        with watch.step():
            raise RuntimeError
    except RuntimeError:
        now[0] += 1000.0
    assert not watch.overdue
