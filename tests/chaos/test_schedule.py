from collections import Counter

import pytest
from tools.chaos.schedule import PAIRS, schedule
from tools.chaos.wanted import wanted


def test_a_seed_says_everything() -> None:
    assert schedule(3, 40, 1000) == schedule(3, 40, 1000)
    assert schedule(3, 40, 1000) != schedule(4, 40, 1000)
    assert wanted(3, 100) == wanted(3, 100)
    assert wanted(3, 100) != wanted(4, 100)


def test_every_pair_comes_before_any_comes_twice() -> None:
    faults = schedule(1, len(PAIRS) + 5, 1000)
    counts = Counter((fault.kind, fault.target) for fault in faults)
    assert set(counts) == set(PAIRS)
    assert max(counts.values()) == 2
    times = [fault.after_requests for fault in faults]
    assert times == sorted(times)
    assert 50 <= times[0] < times[-1] < 950


def test_faults_need_requests() -> None:
    with pytest.raises(ValueError, match="30 faults do not fit among 20 requests"):
        schedule(1, 30, 20)


def test_requests_are_a_mixture() -> None:
    asked = wanted(1, 1000)
    shares = {
        "greedy": sum(each.sampling.temperature == 0 for each in asked),
        "stop": sum(bool(each.sampling.stop) for each in asked),
        "whole": sum(each.whole for each in asked),
        "leaves": sum(each.leaves_after is not None for each in asked),
        "hurried": sum(each.hurried for each in asked),
    }
    assert all(40 < share < 500 for share in shares.values()), shares
    assert not any(each.whole and each.leaves_after for each in asked)
