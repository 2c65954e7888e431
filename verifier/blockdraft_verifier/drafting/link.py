"""The wire to the drafter: a handshake, then one bidirectional stream.

The rest of the verifier knows only `DraftTransport`, so that tests can put a faulty one in its
place.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator
from typing import Protocol, cast, runtime_checkable

import grpc

from blockdraft_models.weights.checkpoint import Checkpoint
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.debug_pb2 import GetStateRequest
from blockdraft_protos.v1.debug_pb2_grpc import DebugServiceStub
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_runtime.channel import Backoff, BackoffPolicy
from blockdraft_runtime.credentials import OtherProcess
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_runtime.shared_memory import SharedFile, is_mapped
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.feature_writers import (
    MessageWriter,
    SharedWriter,
    offer_shared_memory,
)
from blockdraft_verifier.drafting.handshake import (
    DrafterDescription,
    check_description,
    fetch_form,
)

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_SECONDS = 10.0
# A drafter that loads gets no further while it compiles one program.
PROGRESS_SECONDS = 120.0
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 0.2
RECONNECTING = BackoffPolicy(initial_seconds=0.2, max_seconds=5.0)


class TransportError(RuntimeError):
    """The stream to the drafter broke; all its draft KV caches are gone."""


@runtime_checkable
class DraftTransport(Protocol):
    """One stream to a drafter; draft KV caches live exactly as long as it does.

    Requests say where features are, so `feature_writer` writes these just before, in the order of
    their requests.
    """

    description: DrafterDescription
    feature_writer: MessageWriter

    def send(self, request: pb.DraftRequest) -> None:
        """Send a step; raise `TransportError` if the stream is broken."""

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Return the next response, None if none comes in time; `TransportError` if broken."""

    def close(self) -> None:
        """End the stream; the drafter drops its draft KV caches."""


@runtime_checkable
class DraftLink(Protocol):
    """The source of transports; a new one appears after each (re)connection."""

    def current(self) -> DraftTransport | None:
        """Return the newest transport, or None while there is no drafter."""

    def lost(self, transport: DraftTransport) -> None:
        """Report that a transport broke, so that a new one is made."""

    def close(self) -> None:
        """Stop connecting and end the current stream."""


class QueuedResponses:
    """The receiving half of a transport, whose responses another thread puts into a queue.

    `answered` is whether any response has come: a drafter that takes streams only to end them is
    not to be called again at once.
    """

    def __init__(self) -> None:
        """Begin without a response."""
        self.feature_writer = MessageWriter()
        self.answered = False
        self._responses: queue.SimpleQueue[pb.DraftResponse | TransportError] = queue.SimpleQueue()

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Return the next response; see `DraftTransport.receive`."""
        try:
            response = self._responses.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return None
        if isinstance(response, TransportError):
            raise response
        self.answered = True
        self.feature_writer.answered(response.step_id)
        return response


class GrpcDraftTransport(QueuedResponses):
    """A `Draft` stream over gRPC."""

    def __init__(
        self,
        stub: DrafterServiceStub,
        description: DrafterDescription,
        shared: SharedFile | None = None,
    ) -> None:
        """Open the stream and wait until the drafter has taken it; raise its error if it refuses.

        The name of `shared`, memory to offer, is taken away afterwards.
        """
        super().__init__()
        self.description = description
        self._requests: queue.SimpleQueue[pb.DraftRequest | None] = queue.SimpleQueue()
        mapped = False
        try:
            offer = () if shared is None else shared.offer
            self._call = stub.Draft(self._outgoing(), metadata=offer)
            mapped = self._wait_until_taken()
        finally:
            if shared is not None:
                shared.unlink()
                if mapped:
                    self.feature_writer = SharedWriter(shared.memory)
                else:
                    shared.memory.close()
        threading.Thread(target=self._read, name="draft-reader", daemon=True).start()

    def send(self, request: pb.DraftRequest) -> None:
        """Send a step; see `DraftTransport.send`."""
        if not self._call.is_active():
            raise TransportError("the draft stream has ended")
        self._requests.put(request)

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._call.cancel()

    def _wait_until_taken(self) -> bool:
        """Wait until the drafter takes the stream; return whether it mapped the memory offered."""
        # The stream itself has no deadline, only its beginning.
        giving_up = threading.Timer(HANDSHAKE_TIMEOUT_SECONDS, self._call.cancel)
        giving_up.daemon = True
        giving_up.start()
        try:
            mapped = is_mapped(self._call.initial_metadata())
            if mapped is None:
                self._requests.put(None)
                # The metadata of a refusal may come before its reason, which `code` waits for.
                self._call.code()
                if giving_up.finished.is_set():
                    raise ValueError(
                        f"the drafter did not say within {HANDSHAKE_TIMEOUT_SECONDS:g} s that it "
                        "takes the stream; is it of another version?"
                    )
                raise cast(grpc.RpcError, self._call)
            return mapped
        finally:
            giving_up.cancel()

    def _outgoing(self) -> Iterator[pb.DraftRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for response in self._call:
                self._responses.put(response)
            self._responses.put(TransportError("the drafter ended the stream"))
        except grpc.RpcError as error:
            self._responses.put(TransportError(f"draft stream: {error.details()}"))


class GrpcDraftLink:
    """Connects to the drafter's address, and again whenever the stream is lost."""

    def __init__(
        self, address: str, target: Checkpoint, peer_tls: PeerTlsSettings | None = None
    ) -> None:
        """Start connecting in the background to a drafter for `target`."""
        self._address = address
        self._target = target
        self._process = OtherProcess(address, peer_tls)
        self._open_channel()
        self._transport: GrpcDraftTransport | None = None
        self._lost = threading.Event()
        self._closed = threading.Event()
        self._connected = threading.Event()
        self._refusal: str | None = None
        self._features: FeatureForm | None = None
        threading.Thread(target=self._keep_connected, name="draft-link", daemon=True).start()

    def current(self) -> DraftTransport | None:
        """Return the newest transport, or None while there is no drafter."""
        return self._transport

    def lost(self, transport: DraftTransport) -> None:
        """Close a broken transport and ask for a new one."""
        transport.close()
        if transport is self._transport:
            self._transport = None
            self._connected.clear()
            self._lost.set()

    def wait(self, seconds: float) -> DraftTransport | None:
        """Return the first transport, or None if the drafter does not come in time."""
        self._connected.wait(seconds)
        return self._transport

    def wait_while_it_loads(self, unreached_seconds: float) -> DraftTransport | None:
        """Return the first transport, or None once the drafter refuses or gets no further.

        It binds its address before it loads, and says how far it is; None also after so many
        seconds in which it cannot be reached.
        """
        stage, latest = None, time.monotonic() + unreached_seconds
        while self._refusal is None and time.monotonic() < latest:
            if self.wait(LOOK_SECONDS) is not None:
                break
            try:
                state = self._debug.GetState(GetStateRequest(), timeout=ANSWER_SECONDS).state
            except (grpc.RpcError, ValueError):  # also of a channel that was renewed just now
                latest = min(latest, time.monotonic() + unreached_seconds)
                continue
            # Its words change with the time alone.
            if (reached := [state.fields.get(name) for name in ("stage", "done")]) != stage:
                stage, latest = reached, time.monotonic() + PROGRESS_SECONDS
        return self._transport

    def close(self) -> None:
        """Stop connecting and end the current stream."""
        self._closed.set()
        self._lost.set()
        if self._transport is not None:
            self._transport.close()
        self._channel.close()

    def _open_channel(self) -> None:
        self._channel = self._process.channel()
        self._stub = DrafterServiceStub(self._channel)
        self._debug = DebugServiceStub(self._channel)

    def _keep_connected(self) -> None:
        backoff = Backoff(RECONNECTING)
        while not self._closed.is_set():
            transport = self._connect()
            if transport is not None and not self._closed.is_set():
                self._lost.wait()
                if transport.answered:
                    backoff.reset()
                    continue
            elif self._process.renewed():
                self._channel.close()
                self._open_channel()
            self._closed.wait(backoff.pause_seconds())
        # It may have been opened after `close` had closed the one before.
        self._channel.close()

    def _connect(self) -> GrpcDraftTransport | None:
        request = pb.DrafterServiceDescribeRequest(target_fingerprint=self._target.fingerprint)
        try:
            response = self._stub.Describe(request, timeout=HANDSHAKE_TIMEOUT_SECONDS)
            config = self._target.config
            check_description(response, config.num_layers, config.hidden_size)
            self._features = fetch_form(self._stub, response, self._features)
            description = DrafterDescription.from_proto(response, self._features)
            shared = offer_shared_memory(self._address)
            transport = GrpcDraftTransport(self._stub, description, shared)
        except (grpc.RpcError, ValueError) as error:
            self._log_refusal(error)
            return None
        self._lost.clear()
        self._transport = transport
        self._connected.set()
        self._refusal = None
        logger.info(
            "drafter %s connected: %s, block of %d, %s, %s features of %d through %s",
            description.fingerprint,
            description.method,
            description.block_size,
            "trained" if description.trained else "untrained",
            "raw" if self._features.projection is None else "projected",
            description.feature_width,
            transport.feature_writer.name,
        )
        return transport

    def _log_refusal(self, error: Exception) -> None:
        """Log why there is no drafter: once per reason, and not that it is merely absent."""
        absent = isinstance(error, grpc.RpcError) and error.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )
        reason = error.details() if isinstance(error, grpc.RpcError) else str(error)
        if not absent and reason != self._refusal:
            logger.error("no drafting: %s", reason)
            self._refusal = reason
