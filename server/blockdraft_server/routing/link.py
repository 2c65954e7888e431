"""The connection to one verifier, with its health, description and load."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from blockdraft_protos.v1 import verifier_pb2, verifier_pb2_grpc
from blockdraft_runtime.credentials import OtherProcess
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_runtime.status import received_error
from blockdraft_server.admission import LOADING
from blockdraft_server.routing.feed import Feed
from blockdraft_server.routing.verifier_stream import VerifierStream

logger = logging.getLogger(__name__)

Standing = Literal["healthy", "away", "leaving"]

SERVICE = "blockdraft.v1.VerifierService"

# A verifier that does not respond within this time gets no new requests.
_POLL_TIMEOUT_SECONDS = 5.0


class VerifierLink:
    """The connection to one verifier, and the result of its last health check.

    Attributes:
        address: Where the verifier listens.
        leaving: Whether it gets no new requests, because no verifier is expected there any more.
        description: The last description of what it serves; None before the first response.
        healthy: Whether it responded to the last health check, and is ready.
        reported: The load that it reported then.
        loading: What it said of its start at the last health check; None if it said nothing.
    """

    def __init__(
        self,
        address: str,
        on_tried: Callable[[], None] = lambda: None,
        peer_tls: PeerTlsSettings | None = None,
        host: str = "",
    ) -> None:
        """Open a channel to `address`; it connects when first used.

        `on_tried` is called when there is one untried sequence less. With `peer_tls` the verifier's
        certificate must name `host`, or where that is empty the host of the address;
        `UnusableFilesError` if the files cannot be used.
        """
        self.address = address
        self.leaving = False
        self._on_tried = on_tried
        self.description: verifier_pb2.VerifierServiceDescribeResponse | None = None
        self.healthy = False
        self.reported = verifier_pb2.GetLoadResponse()
        self.loading: str | None = None
        self._process = OtherProcess(address, peer_tls, host or None)
        self._open_channel()
        self._stream: VerifierStream | None = None
        self._in_flight = 0
        self._reported_load = 0
        self._in_flight_at_report = 0
        self._other_sequences = 0
        self._poll_now = asyncio.Event()
        self._losses = 0

    @property
    def known_description(self) -> verifier_pb2.VerifierServiceDescribeResponse:
        """The description of a verifier that has responded, as every healthy one has."""
        assert self.description is not None
        return self.description

    @property
    def load(self) -> int:
        """Sequences on the verifier: its own report plus those sent to it since."""
        return max(
            self._in_flight, self._reported_load + self._in_flight - self._in_flight_at_report
        )

    @property
    def untried(self) -> int:
        """Sequences of this server on the verifier that are not known to be harmless.

        See `verifier_stream.TRIED_TOKENS`.
        """
        return self._stream.untried if self._stream is not None else 0

    @property
    def idle(self) -> bool:
        """Whether no sequence of this server is on the verifier."""
        return self._in_flight == 0

    @property
    def standing(self) -> Standing:
        """The verifier in one word."""
        if self.leaving:
            return "leaving"
        return "healthy" if self.healthy else "away"

    def state(self) -> Mapping[str, object]:
        """Return the state of the verifier, as values that JSON can hold."""
        description = self.description
        target: str | None = None
        drafter: str | None = None
        if description is not None:
            target = f"{description.model}:{description.target_fingerprint}"
            if description.HasField("drafter"):
                drafter = description.drafter.fingerprint
        return {
            "address": self.address,
            "healthy": self.healthy,
            "leaving": self.leaving,
            "target": target,
            "drafter": drafter,
            "sequences_of_this_server": self._in_flight,
            "sequences_reported": self._reported_load,
            "untried": self.untried,
        }

    @contextlib.contextmanager
    def decode(self, request: verifier_pb2.SequenceRequest) -> Iterator[Feed]:
        """Begin a sequence on the stream to the verifier, and count it for the context's time.

        The stream is opened with the first sequence, and again after it broke. See
        `VerifierStream.decode`.
        """
        if self._stream is None or not self._stream.open:
            self._stream = VerifierStream(
                self._stub,
                self.known_description,
                lambda: self._other_sequences,
                self.lost,
                self._on_tried,
            )
        self._in_flight += 1
        try:
            with self._stream.decode(request) as feed:
                yield feed
        finally:
            self._in_flight -= 1

    async def poll(self) -> None:
        """Ask for health, description and load; a verifier that does not respond is unhealthy.

        A response from before its stream broke does not make it healthy again; the next one may.
        """
        losses = self._losses
        try:
            health = await self._health.Check(  # type: ignore[attr-defined]  # its stubs lack it
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=_POLL_TIMEOUT_SECONDS
            )
            serving = health.status == health_pb2.HealthCheckResponse.SERVING
            if serving:
                # Each time: a drafter comes and goes, a restarted verifier may serve another model.
                self.description = await self._stub.Describe(
                    verifier_pb2.VerifierServiceDescribeRequest(), timeout=_POLL_TIMEOUT_SECONDS
                )
                in_flight = self._in_flight
                load = await self._stub.GetLoad(
                    verifier_pb2.GetLoadRequest(), timeout=_POLL_TIMEOUT_SECONDS
                )
                self.reported = load
                self._reported_load = load.running_sequences + load.waiting_sequences
                self._in_flight_at_report = in_flight
                # Sequences of this server that came or went meanwhile are not others'.
                own_sequences = max(in_flight, self._in_flight)
                self._other_sequences = max(self._reported_load - own_sequences, 0)
            self.loading = None if serving else await self._start_message()
            self._set_healthy(serving and losses == self._losses, "asked")
        except grpc.aio.AioRpcError as error:
            self.loading = None
            self._set_healthy(False, f"{error.code().name}: {error.details()}")
            await self._show_new_certificates()

    def lost(self) -> None:
        """Note that the stream broke, and check at once whether the verifier lives."""
        self._losses += 1
        self._set_healthy(False, "the stream broke")
        self._poll_now.set()

    async def pause(self, seconds: float) -> None:
        """Wait for the next health check: `seconds`, or until the stream breaks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._poll_now.wait()
        self._poll_now.clear()

    async def close(self) -> None:
        """Close stream and channel; sequences in flight are cancelled."""
        if self._stream is not None:
            await self._stream.close()
        await self._channel.close()

    async def _start_message(self) -> str | None:
        """Return the message of a verifier that is not ready about its start, or None."""
        try:
            await self._stub.Describe(
                verifier_pb2.VerifierServiceDescribeRequest(), timeout=_POLL_TIMEOUT_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            received = received_error(error)
            return received.message if received and received.reason == LOADING else None
        return None

    def _open_channel(self) -> None:
        self._channel = self._process.aio_channel()
        self._stub = verifier_pb2_grpc.VerifierServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def _show_new_certificates(self) -> None:
        """Open another channel if the certificates were rotated, once nothing runs on this one."""
        running = self._stream is not None and self._stream.open
        if not running and self._process.renewed():
            old = self._channel
            self._open_channel()
            await old.close()

    def _set_healthy(self, healthy: bool, cause: str) -> None:
        if healthy != self.healthy:
            state = "ready" if healthy else "away"
            logger.info("verifier %s is %s (%s)", self.address, state, cause)
        self.healthy = healthy
