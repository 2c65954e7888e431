"""The verifiers: which are healthy, what they serve, how busy they are."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from blockdraft_protos.v1 import verifier_pb2, verifier_pb2_grpc
from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_server.request import ModelLimits

logger = logging.getLogger(__name__)

SERVICE = "blockdraft.v1.VerifierService"

# A verifier that does not answer within this time is not given new requests.
_POLL_TIMEOUT_SECONDS = 5.0
# How soon a verifier that is away is looked for again, at most.
_AWAY_POLL_SECONDS = 0.2


class VerifierLink:
    """The connection to one verifier and what was last heard from it."""

    def __init__(self, address: str) -> None:
        """Open a channel to `address`; it connects when first used."""
        self.address = address
        self.description: verifier_pb2.VerifierServiceDescribeResponse | None = None
        self.healthy = False
        self._channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        self.stub = verifier_pb2_grpc.VerifierServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._in_flight = 0
        self._reported_load = 0
        self._in_flight_at_report = 0
        self._look_now = asyncio.Event()

    @property
    def load(self) -> int:
        """Sequences on the verifier: its own report plus what was sent to it since."""
        return max(
            self._in_flight, self._reported_load + self._in_flight - self._in_flight_at_report
        )

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a call for the duration of the context."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def poll(self) -> None:
        """Look at health, description and load; a verifier that fails to answer is unhealthy."""
        try:
            health = await self._health.Check(  # type: ignore[attr-defined]  # its stubs lack it
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=_POLL_TIMEOUT_SECONDS
            )
            if health.status == health_pb2.HealthCheckResponse.SERVING:
                # Each time: a drafter comes and goes, a restarted verifier may serve another model.
                self.description = await self.stub.Describe(
                    verifier_pb2.VerifierServiceDescribeRequest(), timeout=_POLL_TIMEOUT_SECONDS
                )
                in_flight = self._in_flight
                load = await self.stub.GetLoad(
                    verifier_pb2.GetLoadRequest(), timeout=_POLL_TIMEOUT_SECONDS
                )
                self._reported_load = load.running_sequences + load.waiting_sequences
                self._in_flight_at_report = in_flight
            self._set_healthy(health.status == health_pb2.HealthCheckResponse.SERVING, "asked")
        except grpc.aio.AioRpcError as error:
            self._set_healthy(False, f"{error.code().name}: {error.details()}")

    def lost(self) -> None:
        """Take note that a call broke; a look without delay tells whether the verifier lives."""
        self._set_healthy(False, "a call broke")
        self._look_now.set()

    async def pause(self, seconds: float) -> None:
        """Wait until it is time to look again: `seconds`, or until a call breaks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look_now.wait()
        self._look_now.clear()

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        await self._channel.close()

    def _set_healthy(self, healthy: bool, cause: str) -> None:
        if healthy != self.healthy:
            state = "ready" if healthy else "away"
            logger.info("verifier %s is %s (%s)", self.address, state, cause)
        self.healthy = healthy


class VerifierPool:
    """All verifiers of a server, looked at regularly."""

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
        self, fingerprint: str | None = None, avoid: Collection[VerifierLink] = ()
    ) -> VerifierLink | None:
        """Return the least busy healthy verifier, or None.

        Args:
            fingerprint: The target it must serve; None for any.
            avoid: Verifiers to take only if there is no other.
        """
        candidates = [
            link
            for link in self._links
            if link.healthy
            and link.description is not None
            and fingerprint in (None, link.description.target_fingerprint)
        ]
        return min(candidates, key=lambda link: (link in avoid, link.load), default=None)

    async def wait(self, fingerprint: str | None = None) -> VerifierLink:
        """Return the least busy healthy verifier, as soon as there is one."""
        while (link := self.choose(fingerprint)) is None:
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
