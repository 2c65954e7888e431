"""All verifiers of a server, looked at regularly: which one takes the next request."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_server.request import ModelLimits
from blockdraft_server.routing.link import VerifierLink

logger = logging.getLogger(__name__)

# How soon a verifier that is away is looked for again, at most.
_AWAY_POLL_SECONDS = 0.2


class VerifierPool:
    """The verifiers of a server; `start` begins to look at them."""

    def __init__(
        self,
        addresses: Sequence[str],
        poll_seconds: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Remember where the verifiers are; `start` connects.

        Args:
            addresses: Where the verifiers listen.
            poll_seconds: Time between two looks at one.
            on_change: Called after each look.
        """
        self._addresses = tuple(addresses)
        self._links: list[VerifierLink] = []
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._looked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def capacity(self) -> int:
        """Sequences the healthy verifiers decode at once."""
        return sum(
            max(link.description.max_sequences, 1)
            for link in self._links
            if link.healthy and link.description is not None
        )

    @property
    def description(self) -> verifier_pb2.VerifierServiceDescribeResponse | None:
        """What a healthy verifier serves, or was last known to; None before the first answer."""
        known = [link for link in self._links if link.description is not None]
        best = max(known, key=lambda link: link.healthy, default=None)
        return best.description if best is not None else None

    @property
    def limits(self) -> ModelLimits | None:
        """What every healthy verifier can take; None while there is none."""
        healthy = [link.description for link in self._links if link.healthy and link.description]
        if not healthy:
            return None
        return ModelLimits(
            vocabulary_size=min(description.vocabulary_size for description in healthy),
            max_context_tokens=min(description.max_context_tokens for description in healthy),
        )

    def start(self) -> None:
        """Connect, and begin to look at the verifiers. Needs a running event loop."""
        self._links = [VerifierLink(address) for address in self._addresses]
        self._tasks = [asyncio.ensure_future(self._watch(link)) for link in self._links]

    async def stop(self) -> None:
        """Stop looking and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            await link.close()

    def choose(
        self, computation: str | None = None, avoid: Collection[VerifierLink] = ()
    ) -> VerifierLink | None:
        """Return the least busy healthy verifier, or None.

        Args:
            computation: Fingerprint of what it must compute; None for any.
            avoid: Verifiers to take only if there is no other.
        """
        candidates = [
            link
            for link in self._links
            if link.healthy
            and link.description is not None
            and computation in (None, link.description.computation_fingerprint)
        ]
        return min(candidates, key=lambda link: (link in avoid, link.load), default=None)

    async def wait(self, computation: str | None = None) -> VerifierLink:
        """Return the least busy healthy verifier of a computation, as soon as there is one."""
        while (link := self.choose(computation)) is None:
            await self._looked.wait()
        return link

    async def _watch(self, link: VerifierLink) -> None:
        while True:
            try:
                await link.poll()
            except Exception:
                # A look must never end the looking.
                logger.exception("could not look at verifier %s", link.address)
            self._looked.set()
            self._looked = asyncio.Event()
            self._on_change()
            pause = self._poll_seconds
            await link.pause(pause if link.healthy else min(pause, _AWAY_POLL_SECONDS))
