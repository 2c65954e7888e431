"""The one target that a server's verifiers are to serve; a model's name must not stand for two."""

import logging
import time
from collections.abc import Callable, Sequence

from blockdraft_server.routing.link import VerifierLink

logger = logging.getLogger(__name__)


class ServedTarget:
    """Which target a server serves: that of its first verifier, as long as one may come back."""

    def __init__(
        self, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without one.

        Args:
            patience_seconds: How long after the last verifier of the target went away it may come
                back before another target takes its place.
            clock: Returns the time in seconds.
        """
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._fingerprint: str | None = None
        self._seen = clock()
        self._may_return = False
        self._told: set[tuple[str, str]] = set()

    def has(self, link: VerifierLink) -> bool:
        """Whether a verifier serves it, or did when last heard of."""
        known = link.description
        return known is not None and known.target_fingerprint == self._fingerprint

    def left(self, link: VerifierLink) -> None:
        """Take note that a verifier is looked at no more; it may come back at another address."""
        self._may_return |= self.has(link)

    def settle(self, links: Sequence[VerifierLink]) -> None:
        """Take note of what the verifiers serve now; those of another target are logged, once."""
        now = self._clock()
        mine = [link for link in links if self.has(link)]
        if any(link.healthy for link in mine):
            self._seen = now
        elif (not mine and not self._may_return) or now - self._seen >= self._patience_seconds:
            self._adopt(links, now)
        for link in links:
            if not link.healthy or link.description is None or self.has(link):
                continue
            found = (link.address, link.description.target_fingerprint)
            if found not in self._told:
                self._told.add(found)
                logger.error(
                    "verifier %s serves target %s, the others %s: it gets no requests",
                    *found,
                    self._fingerprint,
                )

    def _adopt(self, links: Sequence[VerifierLink], now: float) -> None:
        for link in links:
            if link.healthy and link.description is not None and not link.leaving:
                if self._fingerprint is not None:
                    logger.warning(
                        "no verifier serves target %s any more; now it is %s",
                        self._fingerprint,
                        link.description.target_fingerprint,
                    )
                self._fingerprint = link.description.target_fingerprint
                self._seen = now
                self._may_return = False
                return
