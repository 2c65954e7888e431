"""What the calls of a link took, by a clock that the calls themselves move."""

from collections import deque
from dataclasses import dataclass, field

import pytest

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.timed_link import LinkTimes, SoleLink, TimedTransport
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.feature_writers import FeatureWriter, MessageWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftLink, DraftTransport

DESCRIPTION = DrafterDescription("slow", 4, FeatureForm((0,)), 8, 16, 32, "0" * 16, False, (1.0,))


@dataclass
class SlowTransport:
    """Takes 2 s to send and 5 s to receive; its drafter needs 3 s, 1 s of them to compute."""

    description: DrafterDescription = DESCRIPTION
    feature_writer: FeatureWriter = field(default_factory=MessageWriter)
    now: float = 0.0
    closed: bool = False
    sent: deque[pb.DraftRequest] = field(default_factory=deque)

    def send(self, request: pb.DraftRequest) -> None:
        self.now += 2.0
        self.sent.append(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        self.now += 5.0
        if not self.sent:
            return None
        answer = pb.DraftResponse(step_id=self.sent.popleft().step_id)
        answer.timings.total_time.FromSeconds(3)
        answer.timings.compute_time.FromSeconds(1)
        return answer

    def close(self) -> None:
        self.closed = True


def test_adds_up_all_calls_until_asked() -> None:
    slow = SlowTransport()
    timed = TimedTransport(slow, lambda: slow.now)
    assert isinstance(timed, DraftTransport)
    assert timed.description is DESCRIPTION
    assert timed.take_times() == LinkTimes()
    timed.send(pb.DraftRequest(step_id=1))
    timed.send(pb.DraftRequest(step_id=2))
    answers = [timed.receive(1.0) for _ in range(3)]
    assert [each and each.step_id for each in answers] == [1, 2, None]
    times = timed.take_times()
    assert times == LinkTimes(sending=4.0, waiting=15.0, drafter_total=6.0, drafter_computing=2.0)
    assert times.drafter_host == 4.0
    assert timed.take_times() == LinkTimes()
    timed.close()
    assert slow.closed


def test_a_lost_transport_ends_the_measurement() -> None:
    slow = SlowTransport()
    link = SoleLink(slow)
    assert isinstance(link, DraftLink)
    assert link.current() is slow
    with pytest.raises(BenchError, match="stream to the drafter broke"):
        link.lost(slow)
    link.close()
    assert slow.closed
