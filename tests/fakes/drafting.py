"""A scripted draft method, and the wire between verifier and drafter with faults to order."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

from blockdraft_drafter.learning.observer import StreamObserver
from blockdraft_drafter.method import DraftMethod, DraftRow, DraftTokens, MethodSpec
from blockdraft_drafter.session import Session, SlotPool, StepOutOfOrderError
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.feature_writers import MessageWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport, TransportError

FAULTS = ("drop", "repeat", "reorder", "truncate", "restart", "lose_response", "repeat_response")

# Says what to draft after an anchor at a position.
DraftRule = Callable[[int, int, int], Sequence[int]]


@dataclass
class DraftedFrom:
    """What the drafter held when it drafted."""

    features: np.ndarray
    anchor: int


class ScriptedMethod:
    """A `DraftMethod` that keeps features like a real one and drafts what it is told to."""

    def __init__(
        self,
        draft: DraftRule,
        *,
        layer_ids: tuple[int, ...],
        hidden_size: int,
        vocab_size: int,
        block_size: int = 4,
        max_sequences: int = 8,
        max_context_tokens: int = 128,
        max_feature_rows: int = 8,
        projection: FeatureProjection | None = None,
    ) -> None:
        self.draft = draft
        self.step_seconds: tuple[float, ...] = (1e-4,)
        self.shortest_step_seconds: tuple[float, ...] = ()
        self.drafted_from: list[DraftedFrom] = []
        self.spec = MethodSpec(
            name="scripted",
            block_size=block_size,
            target_layer_ids=layer_ids,
            feature_width=len(layer_ids) * hidden_size if projection is None else projection.width,
            feature_dtype=np.dtype(ml_dtypes.bfloat16),
            vocab_size=vocab_size,
            max_sequences=max_sequences,
            max_context_tokens=max_context_tokens,
            max_feature_rows=max_feature_rows,
            fingerprint="0" * 16,
            trained=False,
            projection=projection,
        )
        self._slots: dict[int, np.ndarray] = {}

    def warm_up(self) -> None:
        """Nothing to compile."""

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        """Append, then draft by script."""
        drafts = []
        for row in rows:
            before = self._slots.get(row.slot, row.features[:0])[: row.context_length]
            assert len(before) == row.context_length
            self._slots[row.slot] = context = np.concatenate([before, row.features])
            if row.draft_length:
                self.drafted_from.append(DraftedFrom(context, row.anchor_token_id))
            tokens = self.draft(len(context), row.anchor_token_id, row.draft_length)
            drafts.append(tuple(tokens)[: row.draft_length])
        return drafts


def describe(method: DraftMethod) -> DrafterDescription:
    """Return the description of a method, as a handshake would."""
    spec, projection = method.spec, method.spec.projection
    fingerprint = "" if projection is None else projection.fingerprint()
    return DrafterDescription(
        method=spec.name,
        block_size=spec.block_size,
        features=FeatureForm(spec.target_layer_ids, projection, fingerprint),
        feature_width=spec.feature_width,
        max_feature_rows=spec.max_feature_rows,
        max_context_tokens=spec.max_context_tokens,
        fingerprint=spec.fingerprint,
        trained=spec.trained,
        step_seconds=tuple(method.step_seconds),
        shortest_step_seconds=tuple(method.shortest_step_seconds),
    )


class SessionTransport:
    """A `DraftTransport` to a `Session` in this process; `fault` may spoil each message."""

    def __init__(
        self,
        method: DraftMethod,
        pool: SlotPool,
        fault: Callable[[], str | None] = lambda: None,
        learn: Callable[[], StreamObserver] | None = None,
    ) -> None:
        self.description = replace(describe(method), learns=learn is not None)
        self.feature_writer = MessageWriter()
        self.session = Session(method, pool, None, None if learn is None else learn())
        self._fault = fault
        self._held: pb.DraftRequest | None = None
        self._responses: deque[pb.DraftResponse] = deque()
        self._broken: str | None = None
        self._closed = False

    def send(self, request: pb.DraftRequest) -> None:
        """Deliver a request, or spoil it."""
        if self._broken:
            raise TransportError(self._broken)
        request = pb.DraftRequest.FromString(request.SerializeToString())
        fault = self._fault()
        if fault == "drop":
            return
        if fault == "restart":
            self._broken = "the drafter restarted"
            return
        if fault == "truncate":
            request.features.data = request.features.data[:-1]
        if fault == "reorder" and self._held is None:
            self._held = request
            return
        self._deliver(request, fault)
        if fault == "repeat":
            self._deliver(request, None)
        if self._held is not None:
            held, self._held = self._held, None
            self._deliver(held, None)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Return the next response, if there is one."""
        if self._responses:
            return self._responses.popleft()
        if self._broken:
            raise TransportError(self._broken)
        return None

    def close(self) -> None:
        """Forget the stream's draft KV caches."""
        if not self._closed:
            self._closed = True
            self.session.close()

    def _deliver(self, request: pb.DraftRequest, fault: str | None) -> None:
        try:
            response = self.session.step(request)
        except StepOutOfOrderError as error:
            self._broken = str(error)
            return
        if fault != "lose_response":
            self._responses.append(response)
        if fault == "repeat_response":
            self._responses.append(response)


@dataclass
class SessionLink:
    """A `DraftLink` that makes a new transport whenever one is lost."""

    method: DraftMethod
    fault_rate: float = 0.0
    seed: int = 0
    faults: list[str] = field(default_factory=list)
    down: bool = False
    always: str | None = None
    learn: Callable[[], StreamObserver] | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._pool = SlotPool(self.method.spec.max_sequences)
        self.transport: SessionTransport | None = None

    def current(self) -> DraftTransport | None:
        """Return the transport, made anew if need be."""
        if self.transport is None and not self.down:
            self.transport = SessionTransport(self.method, self._pool, self._fault, self.learn)
        return self.transport

    def lost(self, transport: DraftTransport) -> None:
        """Close a broken transport."""
        transport.close()
        if transport is self.transport:
            self.transport = None

    def close(self) -> None:
        """Close the transport."""
        if self.transport is not None:
            self.transport.close()

    def _fault(self) -> str | None:
        if self.always is not None:
            self.faults.append(self.always)
            return self.always
        if self._random.random() >= self.fault_rate:
            return None
        self.faults.append(self._random.choice(FAULTS))
        return self.faults[-1]
