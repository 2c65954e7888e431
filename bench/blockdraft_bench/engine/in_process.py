"""Verifier and drafter in one process: the link between them without a wire.

Requests go straight to the drafter's session, the same code that serves a stream; only gRPC is
left out. Measurements of what is drafted and accepted need no more, and start in one process.
"""

import mmap
from collections import deque

from blockdraft_bench.errors import BenchError
from blockdraft_drafter.method import MethodSpec
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.session import Session
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.feature_writers import (
    SHARED_BYTES,
    FeatureWriter,
    SharedWriter,
)
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport


class InProcessTransport:
    """A `DraftTransport` to a session of its own, and the `DraftLink` to it.

    What fails in the drafter is raised from `receive` as it is, not as a lost stream: an engine
    would decode on without drafts, and a measurement of drafts has to end instead.
    """

    def __init__(self, drafter: LoadedMethod) -> None:
        """Open a session of a drafter."""
        spec = drafter.method.spec
        self.description = DrafterDescription(
            method=spec.name,
            block_size=spec.block_size,
            features=form_of(spec),
            feature_width=spec.feature_width,
            max_feature_rows=spec.max_feature_rows,
            max_context_tokens=spec.max_context_tokens,
            fingerprint=spec.fingerprint,
            trained=spec.trained,
            step_seconds=tuple(drafter.method.step_seconds),
            shortest_step_seconds=tuple(drafter.method.shortest_step_seconds),
        )
        # As between processes of one host.
        memory = mmap.mmap(-1, SHARED_BYTES)
        self.feature_writer: FeatureWriter = SharedWriter(memory)
        self._session = Session(drafter.method, drafter.pool, memory)
        self._requests: deque[pb.DraftRequest] = deque()

    def send(self, request: pb.DraftRequest) -> None:
        """Keep a request until its answer is asked for."""
        self._requests.append(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Draft, and return the answer; there is one for every request.

        Here and not in `send`, so that the engine takes drafting for what it waited for.
        """
        if not self._requests:
            return None
        answer = self._session.step(self._requests.popleft())
        self.feature_writer.answered(answer.step_id)
        return answer

    def current(self) -> DraftTransport:
        """Return the transport."""
        return self

    def lost(self, transport: DraftTransport) -> None:
        """Refuse to go on without it."""
        raise BenchError("drafter and target got out of step; drafts were lost")

    def close(self) -> None:
        """Give the session's contexts back."""
        self._session.close()


def form_of(spec: MethodSpec) -> FeatureForm:
    """Return what a handshake would tell of the features that a method takes."""
    if spec.projection is None:
        return FeatureForm(spec.target_layer_ids)
    return FeatureForm(spec.target_layer_ids, spec.projection, spec.projection.fingerprint())
