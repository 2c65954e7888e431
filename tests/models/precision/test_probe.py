"""The trial: what is made of its times, and that it runs."""

import itertools

import pytest

from blockdraft_models import precision
from blockdraft_models.precision import bfloat16_speedup, speedup


def test_a_round_that_something_disturbs_does_not_count() -> None:
    base = itertools.chain([9.0], itertools.repeat(0.3))
    other = itertools.chain([0.1, 7.0], itertools.repeat(0.2))
    assert speedup(base.__next__, other.__next__, rounds=5) == pytest.approx(1.5)


def test_work_beside_all_rounds_meets_both() -> None:
    slower = [1.0, 1.0, 4.0, 4.0, 4.0, 1.0, 1.0]
    base, other = iter([0.3 * each for each in slower]), iter([0.2 * each for each in slower])
    assert speedup(base.__next__, other.__next__, rounds=7) == pytest.approx(1.5)


def test_the_trial_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_LAYERS", 1)
    assert bfloat16_speedup() > 0
