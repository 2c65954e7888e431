"""Trials: a request that may be killing verifiers has one without others of whom that is unknown.

See ADR 0030.
"""

from collections.abc import Awaitable, Callable, Sequence

from blockdraft_server.routing.link import VerifierLink


class Trials:
    """Whose trial it is, and which verifier is kept for it.

    One at a time, in the order asked; but who waits for a verifier that is away holds up nobody
    who waits for another one.
    """

    def __init__(self, healthy: Callable[[str | None], Sequence[VerifierLink]]) -> None:
        """Begin without a trial; `healthy` returns the verifiers of a computation, or all."""
        self._healthy = healthy
        # Who waits for a trial, in order, with the computation that they need.
        self._waiting: dict[object, str | None] = {}
        self._link: VerifierLink | None = None

    @property
    def kept(self) -> VerifierLink | None:
        """The verifier that takes no other requests now; None if all do."""
        return self._link or self._next()[1]

    async def begin(
        self, computation: str | None, changed: Callable[[str | None], Awaitable[None]]
    ) -> VerifierLink:
        """Wait for a verifier for a trial; `end` must follow, unless this raises.

        `changed` returns when verifiers of a computation may have changed; what it raises ends the
        waiting.
        """
        turn = object()
        self._waiting[turn] = computation
        try:
            while (link := self._of(turn)) is None:
                await changed(computation)
        finally:
            del self._waiting[turn]
        self._link = link
        return link

    def end(self) -> None:
        """Leave the verifier to others; the request may stay there."""
        self._link = None

    def _of(self, turn: object) -> VerifierLink | None:
        """Return the verifier of a trial that may begin now; None if it has to wait."""
        first, link = self._next()
        if self._link is not None or first is not turn or link is None or link.untried:
            return None
        return link

    def _next(self) -> tuple[object, VerifierLink | None]:
        """Return whose trial comes next, and the verifier that is soonest free for it."""
        for turn, computation in self._waiting.items():
            if candidates := self._healthy(computation):
                return turn, min(candidates, key=lambda link: link.untried)
        return None, None
