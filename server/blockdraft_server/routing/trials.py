"""Trials: a request that may be killing verifiers has one without others of whom that is unknown.

See ADR 0030.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from blockdraft_server.routing.link import VerifierLink


class Trials:
    """Whose trial it is, and which verifier is kept for it. One at a time, in the order asked."""

    def __init__(self, healthy: Callable[[str | None], Sequence[VerifierLink]]) -> None:
        """Begin without a trial.

        Args:
            healthy: Returns the healthy verifiers of a computation, or of any for None.
        """
        self._healthy = healthy
        self._turn = asyncio.Lock()
        self._coming = 0
        self._computation: str | None = None
        self._link: VerifierLink | None = None

    @property
    def kept(self) -> VerifierLink | None:
        """The verifier that takes no other requests now; None if all do."""
        if self._coming == 0 or self._link is not None:
            return self._link
        candidates = self._healthy(self._computation)
        return min(candidates, key=lambda link: link.untried, default=None)

    async def begin(
        self, computation: str | None, changed: Callable[[str | None], Awaitable[None]]
    ) -> VerifierLink:
        """Wait for a verifier for a trial; `end` must follow, unless this raises.

        Args:
            computation: Fingerprint of what it must compute; None for any.
            changed: Returns when verifiers of a computation may have changed; what it raises ends
                the waiting.
        """
        self._coming += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._coming -= 1
            raise
        try:
            self._computation = computation
            while (link := self.kept) is None or link.untried:
                await changed(computation)
        except BaseException:
            self.end()
            raise
        self._link = link
        return link

    def end(self) -> None:
        """Leave the verifier to others; the request may stay there."""
        self._link = None
        self._coming -= 1
        self._turn.release()
