"""What the drafter says of how likely its tokens are right, and how far that is true.

A sequence is easy at one token and hard at the next. Averages by position do not tell which, but
the drafter does, with every token that it drafts. No I/O, no clock.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from jaxtyping import Float

# Drafts of which claims are kept: those of the last few steps of a full service.
RECENT_DRAFTS = 64
# With fewer of them, nothing is expected of how the next ones differ.
LEAST_DRAFTS = 16
# Claims are taken at their word until as many tokens were expected of them as come to this,
PRIOR_TOKENS = 20.0
# and what was seen fades so that about so many tokens decide.
REMEMBERED_TOKENS = 200.0


class Confidence:
    """Claims of recent drafts."""

    def __init__(self) -> None:
        """Take every claim at its word."""
        self._claimed = self._accepted = PRIOR_TOKENS
        # Claims of recent drafts, the oldest overwritten first; 0 behind the end of a draft, which
        # ends where it is unlikely.
        self._recent: Float[np.ndarray, "drafts positions"] = np.zeros((RECENT_DRAFTS, 0))
        self._seen = 0

    @property
    def truth(self) -> float:
        """How many tokens were accepted for each that was claimed to be right."""
        return self._accepted / self._claimed

    def survival(self, log_chances: Sequence[float]) -> list[float]:
        """Return how likely the first 1, 2, ... tokens of a draft are all right.

        Args:
            log_chances: What the drafter says of each, given those before it.
        """
        truth = self.truth
        return [min(1.0, truth * claim) for claim in claims(log_chances)]

    def see(self, log_chances: Sequence[float]) -> None:
        """Remember what a draft says of itself."""
        more = len(log_chances) - self._recent.shape[1]
        if more > 0:
            self._recent = np.pad(self._recent, ((0, 0), (0, more)))
        place = self._recent[self._seen % RECENT_DRAFTS]
        place[: len(log_chances)] = claims(log_chances)
        place[len(log_chances) :] = 0.0
        self._seen += 1

    def learn(self, log_chances: Sequence[float], accepted: int) -> None:
        """Compare what a draft said of its verified tokens with what was accepted."""
        fade = max(0.0, 1.0 - len(log_chances) / REMEMBERED_TOKENS)
        self._claimed = fade * self._claimed + sum(claims(log_chances))
        self._accepted = fade * self._accepted + accepted

    def spread(
        self, rows: int, alive: Float[np.ndarray, " positions"]
    ) -> Float[np.ndarray, " tokens"] | None:
        """Return how likely each token of drafts yet to be made will be said to be right.

        What is right on average at each position, divided among drafts as recent claims were.

        Args:
            rows: Drafts.
            alive: How likely all tokens up to each position are right on average.

        Returns:
            That of all tokens, falling; None while too little is known.
        """
        if self._seen < LEAST_DRAFTS:
            return None
        length, known = len(alive), min(len(alive), self._recent.shape[1])
        pool = self._recent[: self._seen, :known]
        # Of positions that no draft has reached, all drafts are expected to be alike.
        scaled = np.tile(alive, (len(pool), 1))
        scaled[:, :known] *= pool / np.maximum(pool.mean(axis=0), np.finfo(float).tiny)
        falling = np.sort(np.minimum(scaled, 1.0), axis=None)[::-1]
        # As many as the drafts have, evenly out of those of all recent ones.
        places = (np.arange(rows * length) + 0.5) * (len(pool) / rows)
        return np.asarray(falling[places.astype(int)])


def claims(log_chances: Sequence[float]) -> list[float]:
    """Return how likely it is, by the drafter's word, that all tokens up to each are right."""
    return [math.exp(log_chance) for log_chance in accumulate(log_chances)]


def log_chances(survival: Sequence[float]) -> tuple[float, ...]:
    """Return of how likely tokens are all right how likely each is, given those before it."""
    logs = np.log(np.maximum(survival, np.finfo(float).tiny))
    return tuple(np.diff(logs, prepend=0.0).tolist())
