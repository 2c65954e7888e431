"""One point of the link, over a link without a wire and a clock that the link alone moves."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.fakes.drafting import SessionTransport

from blockdraft_bench.errors import BenchError
from blockdraft_bench.link.drafter import InstantMethod
from blockdraft_bench.link.exchange import Exchange, ExchangeTimes
from blockdraft_drafter.method import DraftRow, DraftTokens
from blockdraft_drafter.session import SlotPool
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting.link import TransportError


class RecordingMethod(InstantMethod):
    """Keeps what it was sent."""

    def __init__(self, width: int, max_sequences: int) -> None:
        super().__init__(width, max_sequences)
        self.steps: list[list[DraftRow]] = []

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        self.steps.append(list(rows))
        return super().step(rows)


class SlowWire(SessionTransport):
    """Takes 1 s to send and 7 s to receive; its drafter needs 3 s, 1 s of them to compute."""

    def __init__(self, method: InstantMethod, pool: SlotPool) -> None:
        super().__init__(method, pool)
        self.now = 0.0
        self.fault: str | None = None

    def send(self, request: pb.DraftRequest) -> None:
        self.now += 1.0
        super().send(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        self.now += 7.0
        if self.fault == "break":
            raise TransportError("cut")
        answer = super().receive(timeout_seconds)
        if answer is not None:
            answer.timings.total_time.FromSeconds(3)
            answer.timings.compute_time.FromSeconds(1)
            if self.fault == "forget":
                del answer.drafts[1]
        return answer


def parts(slots: int = 3) -> tuple[Exchange, SlowWire, RecordingMethod, SlotPool]:
    """Return an exchange, its wire and the drafter at the other end."""
    method, pool = RecordingMethod(8, slots), SlotPool(slots)
    wire = SlowWire(method, pool)
    return Exchange(wire, 3, lambda: wire.now), wire, method, pool


def test_waiting_is_no_time_of_the_verifier() -> None:
    exchange, *_ = parts()
    for _ in range(9):
        assert exchange.step() == ExchangeTimes(round_trip=8.0, verifier_host=1.0, drafter_host=2.0)


def test_sends_the_new_positions_of_every_sequence_once() -> None:
    exchange, _, method, pool = parts()
    lengths: dict[int, int] = {}
    features: NDArray[Any] | None = None
    for _ in range(60):
        exchange.step()
    # A sequence has room for 25 steps; the first of each is made, but does not count.
    assert len(method.steps) == 63
    for number, rows in enumerate(method.steps):
        assert len(rows) == 3
        for row in rows:
            new = number % 25 == 0
            assert row.context_length == (0 if new else lengths[row.slot] + 5)
            lengths[row.slot] = row.context_length
            assert row.features.shape == (5, 8)
            features = row.features if features is None else features
            np.testing.assert_array_equal(row.features, features)
            assert len(row.token_ids) == 5
            assert row.draft_length == 15
    assert features is not None
    assert len(np.unique(features.astype(np.float32))) > 8
    assert pool.used == 3


def test_a_drafter_without_room_ends_it() -> None:
    exchange, *_ = parts(slots=2)
    with pytest.raises(BenchError, match="did not draft for every sequence"):
        exchange.step()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("forget", "out of step: missing_response"), ("break", "stream to the drafter broke")],
)
def test_faults_end_it(fault: str, message: str) -> None:
    exchange, wire, *_ = parts()
    exchange.step()
    wire.fault = fault
    with pytest.raises(BenchError, match=message):
        exchange.step()
