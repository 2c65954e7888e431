"""Who floods the service to teach the drafter nonsense: what the gate and the service make of it.

Of honest text a drafter has half of its tokens right and one that learned nonsense three in ten; of
nonsense it is two in ten and eight. No answer depends on any of this, only how fast answers come.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.drafter.learning.test_service_tau import sequences as served
from tests.training.online.test_promotion import CONFIDENCE, sequences

from blockdraft_drafter.learning.service_tau import WINDOW, Ended, Probation
from blockdraft_training.online import promotion
from blockdraft_training.online.promotion import Gains, Verdict, compare, decide

GOOD_HONEST, GOOD_NONSENSE = 0.5, 0.2
BAD_HONEST, BAD_NONSENSE = 0.3, 0.8
HELD_OUT, LOOKS = 64, 6


@pytest.fixture(autouse=True)
def few_tosses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "_TOSSES", 4_000)
    monkeypatch.setattr(promotion, "_AT_ONCE", 4_000)


def verdicts(
    noise: np.random.Generator,
    candidate: tuple[float, float],
    current: tuple[float, float],
    of: int,
) -> list[Verdict]:
    """Return what follows from looks at held-out prompts, `of` of which are nonsense."""

    def gains(chances: tuple[float, float]) -> Sequence[Gains]:
        honest, nonsense = chances
        return [*sequences(noise, HELD_OUT - of, honest), *sequences(noise, of, nonsense)]

    return [
        decide(
            compare(gains(candidate), gains(current), seed=look),
            look,
            confidence=CONFIDENCE,
            least_gain=0.02,
        )
        for look in range(1, LOOKS + 1)
    ]


def in_service(
    noise: np.random.Generator, chances: tuple[float, float], nonsense: float
) -> list[Ended]:
    """Return sequences in random order, a share of which are nonsense."""
    count = round(WINDOW * nonsense)
    ended = [*served(noise, chances[0], WINDOW - count), *served(noise, chances[1], count)]
    return [ended[place] for place in noise.permutation(WINDOW)]


GOOD, BAD = (GOOD_HONEST, GOOD_NONSENSE), (BAD_HONEST, BAD_NONSENSE)


def test_nonsense_that_is_asked_again_and_again_is_not_promoted() -> None:
    noise = np.random.default_rng(1)
    for _ in range(20):
        # However often a prompt is asked, it is held out once.
        found = verdicts(noise, BAD, GOOD, of=1)
        assert Verdict.PROMOTE not in found
        assert Verdict.START_OVER in found


def test_nonsense_that_was_held_out_too_goes_back_when_the_flood_ends() -> None:
    noise = np.random.default_rng(2)
    # So many different prompts move the mean: it is promoted, and faster for who asked them.
    assert Verdict.PROMOTE in verdicts(noise, BAD, GOOD, of=HELD_OUT // 2)
    for _ in range(20):
        probation = Probation(tuple(in_service(noise, GOOD, nonsense=0.5)))
        assert any(probation.add(ended) is not None for ended in in_service(noise, BAD, 0.0))


def test_what_nonsense_promoted_is_surpassed_when_honest_prompts_are_held_out() -> None:
    noise = np.random.default_rng(3)
    assert all(verdicts(noise, GOOD, BAD, of=1)[0] is Verdict.PROMOTE for _ in range(20))
