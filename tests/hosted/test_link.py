"""A stream within a process: what it passes on, and what becomes of one that breaks."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from tests.drafter.fake_method import FakeMethod
from tests.patience import PATIENCE_SECONDS, until

from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_drafter.service import DrafterService, LoadedMethod
from blockdraft_drafter.session import SlotPool
from blockdraft_hosted.link import LocalLink, LocalTransport
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import RECONNECTING, TransportError

TARGET = "0123456789abcdef"


class Hosted:
    """A drafter without a model, on a loop of its own."""

    def __init__(self) -> None:
        self.method, self.pool = FakeMethod(), SlotPool(3)
        self.service = DrafterService(DrafterMetrics(CollectorRegistry()))
        self.service.serve(LoadedMethod(self.method, self.pool, TARGET))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.link = LocalLink(self.connect)

    def connect(self) -> LocalTransport | None:
        try:
            described = self.service.describe(TARGET)
        except ServiceError:
            return None
        description = DrafterDescription.from_proto(described, FeatureForm((1, 2)))
        return LocalTransport(self.service, self.loop, description)

    @property
    def transport(self) -> LocalTransport:
        transport = self.link.current()
        assert isinstance(transport, LocalTransport)
        return transport

    def stop(self) -> None:
        self.link.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    hosted = Hosted()
    yield hosted
    hosted.stop()


def drafting(step_id: int, sequence_id: int = 7) -> pb.DraftRequest:
    sequence = pb.SequenceDraft(sequence_id=sequence_id, anchor_token_id=3, draft_length=2)
    return pb.DraftRequest(step_id=step_id, sequences=[sequence])


def answered(transport: LocalTransport) -> pb.DraftResponse:
    response = transport.receive(PATIENCE_SECONDS)
    assert response is not None
    return response


def test_requests_are_answered_in_order(hosted: Hosted) -> None:
    for step_id in range(1, 20):
        hosted.transport.send(drafting(step_id))
    responses = [answered(hosted.transport) for _ in range(1, 20)]
    assert [response.step_id for response in responses] == list(range(1, 20))
    assert all(len(response.drafts[0].token_ids) == 2 for response in responses)
    assert hosted.transport.receive(0.0) is None


@pytest.mark.parametrize("fault", ["lost cache", "lost request"])
def test_a_stream_that_breaks_gives_its_slots_back_and_makes_room_for_another(
    hosted: Hosted, fault: str
) -> None:
    broken = hosted.transport
    broken.send(drafting(1))
    answered(broken)
    assert hosted.pool.used == 1
    hosted.method.fail_next = fault == "lost cache"
    broken.send(drafting(3 if fault == "lost request" else 2))
    with pytest.raises(TransportError, match=r"cache is lost|step_id is 3, expected 2"):
        broken.receive(PATIENCE_SECONDS)
    with pytest.raises(TransportError, match="has ended"):
        broken.send(drafting(4))
    assert hosted.pool.used == 0
    hosted.link.lost(broken)
    assert hosted.transport is not broken
    hosted.transport.send(drafting(1))
    assert answered(hosted.transport).step_id == 1


def test_nobody_waits_for_a_drafter_that_hangs(hosted: Hosted) -> None:
    hanging = threading.Event()
    hosted.loop.call_soon_threadsafe(hanging.wait)
    late = hosted.transport
    late.send(drafting(1))
    assert late.receive(0.01) is None
    # The stream counts as lost, and after a pause another begins behind what hangs.
    hosted.link.lost(late)
    until(lambda: hosted.link.current() is not None)
    hosted.transport.send(drafting(1, sequence_id=8))
    assert hosted.transport.receive(0.01) is None
    hanging.set()
    assert answered(hosted.transport).drafts[0].sequence_id == 8
    # What the lost stream had asked for was dropped with it.
    assert hosted.method.steps == 1
    until(lambda: hosted.pool.used == 1)


def test_once_nothing_drafts_any_more_there_is_no_stream(hosted: Hosted) -> None:
    hosted.service.drain()
    hosted.link.lost(hosted.transport)
    assert hosted.link.current() is None


def test_a_drafter_that_only_breaks_streams_is_left_alone_for_a_while(hosted: Hosted) -> None:
    now = 0.0
    link = LocalLink(hosted.connect, lambda: now)
    for pause in (RECONNECTING.initial_seconds, 2 * RECONNECTING.initial_seconds):
        broken = link.current()
        assert broken is not None
        hosted.method.fail_next = True
        broken.send(drafting(1))
        with pytest.raises(TransportError):
            broken.receive(PATIENCE_SECONDS)
        link.lost(broken)
        now += 0.49 * pause
        assert link.current() is None
        now += pause
    link.close()
