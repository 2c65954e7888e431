"""What the drafter says of how likely its tokens are right, and how far that is true.

A sequence is easy at one token and hard at the next. Averages by position do not tell which, but
the drafter does, with every token that it drafts. No I/O, no clock.
"""

import math
from collections import deque
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
        self._recent: deque[list[float]] = deque(maxlen=RECENT_DRAFTS)
        self._claimed = self._accepted = PRIOR_TOKENS
        self._pool: Float[np.ndarray, "drafts positions"] | None = None

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
        self._recent.append(list(claims(log_chances)))
        self._pool = None

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
        if len(self._recent) < LEAST_DRAFTS:
            return None
        if self._pool is None:
            longest = max(map(len, self._recent))
            # A draft ends where it is unlikely: what it does not say is nothing.
            self._pool = np.array([each + [0.0] * (longest - len(each)) for each in self._recent])
        length = len(alive)
        pool = self._pool[:, :length]
        pool = np.pad(pool, ((0, 0), (0, length - pool.shape[1])))
        means = pool.mean(axis=0)
        scaled = np.where(means > 0.0, pool / np.where(means > 0.0, means, 1.0), 1.0) * alive
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
