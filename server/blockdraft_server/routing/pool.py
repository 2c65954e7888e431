"""The verifiers of a server, polled regularly, and the choice of one for the next request."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_runtime.status import ServiceError
from blockdraft_server.admission import loading, verifier_unavailable
from blockdraft_server.request import ModelLimits
from blockdraft_server.routing.link import Standing, VerifierLink
from blockdraft_server.routing.places import Place, Places

logger = logging.getLogger(__name__)

# Longest pause before a verifier that is away is polled again.
_AWAY_POLL_SECONDS = 0.2

Changed = Callable[[str | None], Awaitable[None]]
"""Returns when verifiers of a computation may have changed; an exception ends the waiting."""


class VerifierPool:
    """The verifiers of a server; `start` begins to poll them.

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

        Each is polled every `poll_seconds`; `on_change` is called after each poll. If all of a
        target are away for `recovery_seconds`, verifiers of another target may take over.
        """
        self._places = places
        self._links: dict[Place, VerifierLink] = {}
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._peer_tls = peer_tls
        self._polled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._target = ServedTarget(recovery_seconds)
        self.trials = Trials(self._healthy, self.wake)

    @property
    def capacity(self) -> int:
        """Sequences the healthy verifiers decode at once."""
        return sum(max(link.known_description.max_sequences, 1) for link in self._healthy())

    @property
    def load(self) -> verifier_pb2.GetLoadResponse:
        """The load of all healthy verifiers together, at their last health checks."""
        loads = [link.reported for link in self._healthy()]
        return verifier_pb2.GetLoadResponse(
            running_sequences=sum(load.running_sequences for load in loads),
            waiting_sequences=sum(load.waiting_sequences for load in loads),
            used_pages=sum(load.used_pages for load in loads),
            total_pages=sum(load.total_pages for load in loads),
        )

    @property
    def drafting(self) -> list[inference_pb2.Drafting]:
        """The state of drafting on each healthy verifier."""
        return [link.known_description.drafting for link in self._healthy()]

    @property
    def description(self) -> verifier_pb2.VerifierServiceDescribeResponse | None:
        """Description of a healthy verifier, or the last known; None before the first response."""
        links = [link for link in self._links.values() if self._target.has(link)]
        best = max(links, key=lambda link: link.healthy, default=None)
        return best.description if best is not None else None

    @property
    def limits(self) -> ModelLimits | None:
        """Limits that every healthy verifier allows; None while there is none."""
        healthy = [link.known_description for link in self._healthy()]
        if not healthy:
            return None
        return ModelLimits(
            vocabulary_size=min(description.vocabulary_size for description in healthy),
            max_context_tokens=min(description.max_context_tokens for description in healthy),
        )

    @property
    def ready_limits(self) -> ModelLimits:
        """The limits; UNAVAILABLE while there is no healthy verifier."""
        limits = self.limits
        if limits is None:
            raise self.unavailable()
        return limits

    def adapters(self) -> Sequence[str]:
        """Return the names of the target's adapters; UNAVAILABLE before the first response."""
        description = self.description
        if description is None:
            raise self.unavailable()
        return description.adapters

    def unavailable(self) -> ServiceError:
        """Return the error for a request while no verifier is healthy: one may be loading."""
        messages = (link.loading for link in self._links.values() if link.loading is not None)
        message = next(messages, None)
        return verifier_unavailable() if message is None else loading(message)

    def count(self, standing: Standing) -> int:
        """Return the number of verifiers of a standing, whatever their target; thread-safe."""
        return sum(link.standing == standing for link in list(self._links.values()))

    def state(self) -> Mapping[str, object]:
        """Return the state of each verifier, as values that JSON can hold."""
        kept_link = self.trials.kept_link
        return {
            "verifiers": [link.state() for link in self._links.values()],
            "kept_for_trial": None if kept_link is None else kept_link.address,
        }

    def start(self) -> None:
        """Connect, and begin to poll the verifiers. Needs a running event loop."""
        self._follow()
        self._keep(self._places.keep_current(self._follow))

    async def stop(self) -> None:
        """Stop polling and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            await link.close()

    def choose(
        self, computation: str | None = None, avoid: Collection[VerifierLink] = ()
    ) -> VerifierLink | None:
        """Return the least busy healthy verifier that is not kept for a trial, or None.

        It is of `computation`, None for any; one to `avoid` is chosen only if there is no other.
        """
        kept_link = self.trials.kept_link
        candidates = [link for link in self._healthy(computation) if link is not kept_link]
        return min(candidates, key=lambda link: (link in avoid, link.load), default=None)

    async def wait(
        self, computation: str | None = None, patience_seconds: float = math.inf
    ) -> VerifierLink:
        """Return the least busy healthy verifier of a computation, as soon as there is one.

        `TimeoutError` if none was healthy for that long. Waiting for a trial to end does not count.
        """
        changed = self.changes(patience_seconds)
        while (link := self.choose(computation)) is None:
            await changed(computation)
        return link

    def changes(self, patience_seconds: float) -> Changed:
        """Return a coroutine function that waits until verifiers of a computation may have changed.

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
            # The polls of the verifiers never end.
            await self._polled.wait()

        return changed

    def wake(self) -> None:
        """Wake all requests that wait for a verifier."""
        self._polled.set()
        self._polled = asyncio.Event()

    def serves(self, computation: str | None = None) -> bool:
        """Whether a verifier of a computation is healthy, kept for a trial or not."""
        return bool(self._healthy(computation))

    def is_alive(self, process: str) -> bool:
        """Whether a verifier's process still responds."""
        links = self._links.values()
        return any(link.healthy and link.known_description.process == process for link in links)

    def _healthy(self, computation: str | None = None) -> list[VerifierLink]:
        """Return the healthy verifiers of the target, of one of its computations or of any."""
        return [
            link
            for link in self._links.values()
            if link.standing == "healthy"
            and self._target.has(link)
            and computation in (None, link.known_description.computation_fingerprint)
        ]

    def _follow(self) -> None:
        """Connect to new verifiers; those that are no longer expected get no requests.

        `UnusableFilesError` if the certificates cannot be used.
        """
        known_places = self._places.known_places
        for place, link in self._links.items():
            link.leaving = place not in known_places
        for place in sorted(known_places - self._links.keys()):
            link = VerifierLink(place.address, self.wake, self._peer_tls, place.host)
            self._links[place] = link
            self._keep(self._watch(place, link))

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the pool stops."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, place: Place, link: VerifierLink) -> None:
        while not (link.leaving and link.idle):
            was_healthy = link.healthy
            try:
                await link.poll()
            except Exception:
                # A failed poll must not end the polling.
                logger.exception("could not poll verifier %s", link.address)
            if was_healthy and not link.healthy:
                self._places.resolve_now()
            self._polled_one()
            pause = self._poll_seconds
            await link.pause(pause if link.healthy else min(pause, _AWAY_POLL_SECONDS))
        logger.info("verifier %s is gone", link.address)
        del self._links[place]
        self._target.left(link)
        self._polled_one()
        await link.close()

    def _polled_one(self) -> None:
        self._target.settle(list(self._links.values()))
        self.wake()
        self._on_change()


class ServedTarget:
    """The one target that a server's verifiers are to serve; its name must not mean two models.

    It is that of the first verifier, as long as a verifier of that target may come back.
    """

    def __init__(
        self, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without a target.

        Another target takes over `patience_seconds` after the last verifier of this one went away.
        """
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._fingerprint: str | None = None
        self._last_healthy = clock()
        self._may_return = False
        self._logged: set[tuple[str, str]] = set()

    def has(self, link: VerifierLink) -> bool:
        """Whether a verifier serves the target, or did at its last response."""
        description = link.description
        return description is not None and description.target_fingerprint == self._fingerprint

    def left(self, link: VerifierLink) -> None:
        """Note that a verifier is polled no more; it may come back at another address."""
        self._may_return |= self.has(link)

    def settle(self, links: Sequence[VerifierLink]) -> None:
        """Note the targets of the verifiers; each verifier of another target is logged once."""
        now = self._clock()
        mine = [link for link in links if self.has(link)]
        if any(link.healthy for link in mine):
            self._last_healthy = now
        elif not (mine or self._may_return) or now - self._last_healthy >= self._patience_seconds:
            self._adopt(links, now)
        for link in links:
            if not link.healthy or self.has(link):
                continue
            mismatch = (link.address, link.known_description.target_fingerprint)
            if mismatch not in self._logged:
                self._logged.add(mismatch)
                logger.error(
                    "verifier %s serves target %s, the others %s: it gets no requests",
                    *mismatch,
                    self._fingerprint,
                )

    def _adopt(self, links: Sequence[VerifierLink], now: float) -> None:
        first = next((link for link in links if link.standing == "healthy"), None)
        if first is None:
            return
        fingerprint = first.known_description.target_fingerprint
        if self._fingerprint is not None:
            logger.warning(
                "no verifier serves target %s any more; now it is %s",
                self._fingerprint,
                fingerprint,
            )
        self._fingerprint = fingerprint
        self._last_healthy = now
        self._may_return = False


class Trials:
    """The request on trial, and the verifier that is kept for it; see ADR 0030.

    A request that may be killing verifiers is tried without other requests that might. Trials run
    one at a time, in the order asked; a request that waits for a verifier that is away does not
    hold up one that waits for another verifier.
    """

    def __init__(
        self, healthy: Callable[[str | None], Sequence[VerifierLink]], wake: Callable[[], None]
    ) -> None:
        """Begin without a trial.

        `healthy` returns the verifiers of a computation, or all; `wake` wakes all that wait.
        """
        self._healthy = healthy
        self._wake = wake
        # The requests that wait for a trial, in order, with the computation that they need.
        self._waiting: dict[object, str | None] = {}
        self._link: VerifierLink | None = None

    @property
    def kept_link(self) -> VerifierLink | None:
        """The verifier that takes no other requests now; None if all do."""
        return self._link or self._next()[1]

    async def begin(self, computation: str | None, changed: Changed) -> VerifierLink:
        """Wait for a verifier for a trial; `end` must follow, unless this raises."""
        turn = object()
        self._waiting[turn] = computation
        try:
            while (link := self._of(turn)) is None:
                await changed(computation)
        finally:
            del self._waiting[turn]
            # If this request gives up, another one may have its turn now.
            self._wake()
        self._link = link
        return link

    def end(self) -> None:
        """Open the verifier to other requests; this one may stay there."""
        self._link = None
        self._wake()

    def _of(self, turn: object) -> VerifierLink | None:
        """Return the verifier of a trial that may begin now; None if it has to wait."""
        first, link = self._next()
        if self._link is not None or first is not turn or link is None or link.untried:
            return None
        return link

    def _next(self) -> tuple[object, VerifierLink | None]:
        """Return the next turn, and the verifier that is free for it soonest."""
        for turn, computation in self._waiting.items():
            if candidates := self._healthy(computation):
                return turn, min(candidates, key=lambda link: link.untried)
        return None, None
