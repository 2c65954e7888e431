"""One point of the measurement: sequences that commit positions and are drafted for, in turn."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blockdraft_bench.errors import BenchError
from blockdraft_bench.link.drafter import BLOCK_SIZE, CONTEXT_TOKENS, VOCAB_SIZE
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.cache import FEATURE_DTYPE, FeatureStore
from blockdraft_verifier.drafting.link import DraftTransport
from blockdraft_verifier.drafting.sync import DraftSync
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

PAGE_SIZE = EngineSettings().page_size
# Of each sequence, from its beginning on.
PAGES = -(-CONTEXT_TOKENS // PAGE_SIZE)
TIMEOUT_SECONDS = EngineSettings().draft_timeout_seconds
# Newly committed positions of each sequence, whose features a step sends: what a verification of
# a good drafter gains.
ROWS = 5
DRAFT_LENGTH = BLOCK_SIZE - 1


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """The times of one round trip, in seconds."""

    round_trip: float  # from before the request until all drafts were taken in
    verifier_host: float  # the part that the verifier did not spend waiting for a response
    drafter_host: float  # the drafter's time for its responses, without its draft method


class TimedTransport:
    """A `DraftTransport` around another one, and a `DraftLink` to it; times the responses.

    A measurement cannot go on when the stream is lost.
    """

    def __init__(self, transport: DraftTransport, clock: Callable[[], float]) -> None:
        """Time the calls of `transport`, in the clock's seconds."""
        self.description = transport.description
        self.feature_writer = transport.feature_writer
        self._transport = transport
        self._clock = clock
        self._waiting = self._drafter_host = 0.0

    def take_times(self) -> tuple[float, float]:
        """Return the seconds in `receive` since the last call, and those of the drafter's host.

        The latter are its time for responses without its draft method, by its own clock.
        """
        times = self._waiting, self._drafter_host
        self._waiting = self._drafter_host = 0.0
        return times

    def send(self, request: pb.DraftRequest) -> None:
        """Send a step; see `DraftTransport.send`."""
        self._transport.send(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Return the next response; see `DraftTransport.receive`."""
        started = self._clock()
        response = self._transport.receive(timeout_seconds)
        self._waiting += self._clock() - started
        if response is not None:
            total, computing = response.timings.total_time, response.timings.compute_time
            host = total.ToTimedelta() - computing.ToTimedelta()
            self._drafter_host += host.total_seconds()
        return response

    def current(self) -> DraftTransport:
        """Return the transport."""
        return self

    def lost(self, transport: DraftTransport) -> None:
        """Refuse to go on without it."""
        raise BenchError("the stream to the drafter broke")

    def close(self) -> None:
        """End the stream."""
        self._transport.close()


class Exchange:
    """The verifier's side of one stream: draft KV caches, features, sequences; without a target."""

    def __init__(
        self,
        transport: DraftTransport,
        sequences: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare; nothing is sent yet. The drafter needs slots for so many sequences."""
        self._count = sequences
        self._clock = clock
        self._transport = TimedTransport(transport, clock)
        self._repairs: list[str] = []
        self._sync = DraftSync(self._transport, VOCAB_SIZE, TIMEOUT_SECONDS, self._repairs.append)
        self._sync.poll()
        width = transport.description.feature_width
        self._store = FeatureStore(sequences * PAGES, PAGE_SIZE, width)
        self._sync.use_features(self._store)
        rng = np.random.default_rng(0)
        self._features = rng.standard_normal((ROWS, width), np.float32).astype(FEATURE_DTYPE)
        self._tokens = random.Random(0)
        self._sequences: list[TokenSequence] = []

    def step(self) -> ExchangeTimes:
        """Commit positions of every sequence, send their features and wait for all drafts.

        Sequences at their full length are replaced first. The step that tells the drafter so does
        not count.
        """
        if not self._sequences or self._sequences[0].committed + ROWS > CONTEXT_TOKENS:
            self._begin_anew()
            self._exchange()
        return self._exchange()

    def _begin_anew(self) -> None:
        for sequence in self._sequences:
            self._sync.caches.release(sequence)
        self._sequences = []
        for index in range(self._count):
            request = GenerationRequest(str(index), self._made_up_tokens(1))
            pages = range(index * PAGES, (index + 1) * PAGES)
            self._sequences.append(TokenSequence(index, request, arrival_time=0.0, pages=[*pages]))

    def _exchange(self) -> ExchangeTimes:
        for sequence in self._sequences:
            self._commit(sequence)
        requests = [(sequence, DRAFT_LENGTH) for sequence in self._sequences]
        self._transport.take_times()
        started = self._clock()
        self._sync.request(requests, TIMEOUT_SECONDS)
        self._sync.collect(wait="all")
        round_trip = self._clock() - started
        waiting, drafter_host = self._transport.take_times()
        self._check()
        return ExchangeTimes(round_trip, round_trip - waiting, drafter_host)

    def _commit(self, sequence: TokenSequence) -> None:
        """Advance a sequence as after a step that gained as many tokens."""
        sequence.draft = None
        sequence.tokens.extend(self._made_up_tokens(ROWS))
        self._store.write(sequence.pages, sequence.committed, self._features)
        sequence.committed += ROWS

    def _check(self) -> None:
        if self._repairs:
            raise BenchError(f"verifier and drafter got out of step: {', '.join(self._repairs)}")
        for sequence in self._sequences:
            draft = sequence.draft
            if draft is None or len(draft.token_ids) != DRAFT_LENGTH:
                raise BenchError("the drafter did not draft for every sequence")

    def _made_up_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._tokens.choices(range(VOCAB_SIZE), k=count))
