"""How long the calls of a link to a drafter took, and what the drafter says of its own time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from blockdraft_bench.common.errors import BenchError
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting.link import DraftTransport


@dataclass(slots=True)
class LinkTimes:
    """What the calls of a transport took, in seconds.

    Attributes:
        sending: In `send`.
        waiting: In `receive`.
        drafter_total: What the drafter needed for its answers, by its own clock.
        drafter_computing: How much of that its draft method needed.
    """

    sending: float = 0.0
    waiting: float = 0.0
    drafter_total: float = 0.0
    drafter_computing: float = 0.0

    @property
    def drafter_host(self) -> float:
        """What the drafter needed beside its draft method."""
        return self.drafter_total - self.drafter_computing


class TimedTransport:
    """A `DraftTransport` around another one, whose calls it times."""

    def __init__(
        self, transport: DraftTransport, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Time the calls of `transport`.

        Args:
            transport: What sends and receives.
            clock: Seconds.
        """
        self.description = transport.description
        self.feature_writer = transport.feature_writer
        self._transport = transport
        self._clock = clock
        self._times = LinkTimes()

    def take_times(self) -> LinkTimes:
        """Return the times of all calls since last asked."""
        times, self._times = self._times, LinkTimes()
        return times

    def send(self, request: pb.DraftRequest) -> None:
        """Send a step; see `DraftTransport.send`."""
        started = self._clock()
        self._transport.send(request)
        self._times.sending += self._clock() - started

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Return the next answer; see `DraftTransport.receive`."""
        started = self._clock()
        answer = self._transport.receive(timeout_seconds)
        self._times.waiting += self._clock() - started
        if answer is not None:
            timings = answer.timings
            self._times.drafter_total += timings.total_time.ToTimedelta().total_seconds()
            self._times.drafter_computing += timings.compute_time.ToTimedelta().total_seconds()
        return answer

    def close(self) -> None:
        """End the stream."""
        self._transport.close()


class SoleLink:
    """A `DraftLink` to one transport; a measurement cannot go on when it is lost."""

    def __init__(self, transport: DraftTransport) -> None:
        """Lead to `transport`."""
        self._transport = transport

    def current(self) -> DraftTransport:
        """Return the transport."""
        return self._transport

    def lost(self, transport: DraftTransport) -> None:
        """Refuse to go on without it.

        Raises:
            BenchError: Always.
        """
        raise BenchError("the stream to the drafter broke")

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()
