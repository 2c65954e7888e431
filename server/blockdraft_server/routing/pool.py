"""All verifiers of a server, looked at regularly: which one takes the next request."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_server.request import ModelLimits
from blockdraft_server.routing.link import Standing, VerifierLink
from blockdraft_server.routing.places import Place, Places
from blockdraft_server.routing.target import ServedTarget
from blockdraft_server.routing.trials import Trials

logger = logging.getLogger(__name__)

# How soon a verifier that is away is looked for again, at most.
_AWAY_POLL_SECONDS = 0.2


class VerifierPool:
    """The verifiers of a server; `start` begins to look at them.

    Attributes:
        trials: Keeps a verifier for requests under suspicion.
    """

    def __init__(
        self,
        places: Places,
        poll_seconds: float,
        recovery_seconds: float,
        on_change: Callable[[], None] = lambda: None,
        peer_tls: PeerTlsSettings | None = None,
    ) -> None:
        """Remember where the verifiers are; `start` connects.

        Args:
            places: Where the verifiers are.
            poll_seconds: Time between two looks at one.
            recovery_seconds: How long those that are away may take to come back before verifiers
                of another target take their place.
            on_change: Called after each look.
            peer_tls: Certificates between the processes; None for plaintext.
        """
        self._places = places
        self._links: dict[Place, VerifierLink] = {}
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._peer_tls = peer_tls
        self._looked = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._target = ServedTarget(recovery_seconds)
        self.trials = Trials(self._healthy)

    @property
    def capacity(self) -> int:
        """Sequences the healthy verifiers decode at once."""
        return sum(
            max(link.description.max_sequences, 1)
            for link in self._healthy()
            if link.description is not None
        )

    @property
    def description(self) -> verifier_pb2.VerifierServiceDescribeResponse | None:
        """What a healthy verifier serves, or was last known to; None before the first answer."""
        known = [link for link in self._links.values() if self._target.has(link)]
        best = max(known, key=lambda link: link.healthy, default=None)
        return best.description if best is not None else None

    @property
    def limits(self) -> ModelLimits | None:
        """What every healthy verifier can take; None while there is none."""
        healthy = [link.description for link in self._healthy() if link.description is not None]
        if not healthy:
            return None
        return ModelLimits(
            vocabulary_size=min(description.vocabulary_size for description in healthy),
            max_context_tokens=min(description.max_context_tokens for description in healthy),
        )

    def count(self, standing: Standing) -> int:
        """Return how many verifiers are so, of whatever target; may be called by any thread."""
        return sum(link.standing == standing for link in list(self._links.values()))

    def state(self) -> Mapping[str, object]:
        """Return what is known of each verifier, as values that JSON can hold."""
        return {
            "verifiers": [link.state() for link in self._links.values()],
            "kept_for_trial": None if self.trials.kept is None else self.trials.kept.address,
        }

    def start(self) -> None:
        """Connect, and begin to look at the verifiers. Needs a running event loop."""
        self._follow()
        self._keep(self._places.keep_current(self._follow))

    async def stop(self) -> None:
        """Stop looking and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            await link.close()

    def choose(
        self, computation: str | None = None, avoid: Collection[VerifierLink] = ()
    ) -> VerifierLink | None:
        """Return the least busy healthy verifier that is not kept for a trial, or None.

        Args:
            computation: Fingerprint of what it must compute; None for any.
            avoid: Verifiers to take only if there is no other.
        """
        kept = self.trials.kept
        candidates = [link for link in self._healthy(computation) if link is not kept]
        return min(candidates, key=lambda link: (link in avoid, link.load), default=None)

    async def wait(
        self, computation: str | None = None, patience_seconds: float = math.inf
    ) -> VerifierLink:
        """Return the least busy healthy verifier of a computation, as soon as there is one.

        Raises:
            TimeoutError: If for so long none was healthy. Waiting for a trial to end does not
                count.
        """
        changed = self.changes(patience_seconds)
        while (link := self.choose(computation)) is None:
            await changed(computation)
        return link

    def changes(self, patience_seconds: float) -> Callable[[str | None], Awaitable[None]]:
        """Return what waits until verifiers of a computation may have changed.

        It raises `TimeoutError` once none of them has been healthy for `patience_seconds`.
        """
        away_since: float | None = None

        async def changed(computation: str | None) -> None:
            nonlocal away_since
            if self._healthy(computation):
                away_since = None
            elif away_since is None:
                away_since = time.monotonic()
            elif time.monotonic() - away_since >= patience_seconds:
                raise TimeoutError
            # The looks at the verifiers never end.
            await self._looked.wait()

        return changed

    def end_trial(self) -> None:
        """Leave the verifier of a trial to others."""
        self.trials.end()
        self.wake()

    def wake(self) -> None:
        """Let everybody look who waits for a verifier."""
        self._looked.set()
        self._looked = asyncio.Event()

    def serves(self, computation: str | None = None) -> bool:
        """Whether a verifier of a computation is healthy, kept for a trial or not."""
        return bool(self._healthy(computation))

    def is_alive(self, process: str) -> bool:
        """Whether a verifier's process still answers."""
        return any(
            link.healthy and link.description is not None and link.description.process == process
            for link in self._links.values()
        )

    def _healthy(self, computation: str | None = None) -> list[VerifierLink]:
        """Return the healthy verifiers of the target, of one of its computations or of any."""
        return [
            link
            for link in self._links.values()
            if link.standing == "healthy"
            and link.description is not None
            and self._target.has(link)
            and computation in (None, link.description.computation_fingerprint)
        ]

    def _follow(self) -> None:
        """Connect to verifiers that have come; those that are expected no more get no requests.

        Raises:
            UnusableFilesError: If the certificates cannot be used.
        """
        known = self._places.known
        for place, link in self._links.items():
            link.leaving = place not in known
        for place in sorted(known - self._links.keys()):
            link = VerifierLink(place.address, self.wake, self._peer_tls, place.host)
            self._links[place] = link
            self._keep(self._watch(place, link))

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something until the end, or its own."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, place: Place, link: VerifierLink) -> None:
        while not (link.leaving and link.idle):
            was_healthy = link.healthy
            try:
                await link.poll()
            except Exception:
                # A look must never end the looking.
                logger.exception("could not look at verifier %s", link.address)
            if was_healthy and not link.healthy:
                self._places.look_now()
            self._looked_at_one()
            pause = self._poll_seconds
            await link.pause(pause if link.healthy else min(pause, _AWAY_POLL_SECONDS))
        logger.info("verifier %s is gone", link.address)
        del self._links[place]
        self._target.left(link)
        self._looked_at_one()
        await link.close()

    def _looked_at_one(self) -> None:
        self._target.settle(list(self._links.values()))
        self.wake()
        self._on_change()
