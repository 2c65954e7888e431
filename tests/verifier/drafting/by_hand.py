"""A drafter made by hand, for a sync: every response is queued by the test."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

import ml_dtypes
import numpy as np
from tests.fakes.engine import Clock, FakeLink, FakeTransport

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.sync import DraftSync, DraftTimes
from blockdraft_verifier.scheduling.sequence import Draft, GenerationRequest, TokenSequence

VOCAB = 50
PAGE_SIZE, PAGES_EACH = 4, 10
TIMEOUT = 1.0
DESCRIPTION = DrafterDescription(
    method="by-hand",
    block_size=5,
    features=FeatureForm((0,)),
    feature_width=2,
    max_feature_rows=100,
    max_context_tokens=30,
    fingerprint="0" * 16,
    trained=True,
    step_seconds=(0.001,),
)


class Bench:
    """A sync, its drafter, and sequences with known features."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.link = FakeLink(None)
        self.connect()
        self.repairs: Counter[str] = Counter()
        self.sync = DraftSync(
            self.link,
            VOCAB,
            TIMEOUT,
            lambda cause: self.repairs.update([cause]),
            self.clock,
        )
        self.store = FeatureStore(4 * PAGES_EACH, PAGE_SIZE, DESCRIPTION.feature_width)
        self.sync.use_features(self.store)
        assert self.sync.poll() == DESCRIPTION
        self.count = 0

    def connect(self) -> None:
        """Have a drafter that answers what the test says."""
        self.wire = self.link.transport = FakeTransport(DESCRIPTION, self.clock)

    def sequence(self, committed: int) -> TokenSequence:
        """Return a sequence whose features say which sequence and position they are of."""
        tokens = tuple(range(1, committed + 2))
        sequence = TokenSequence(self.count, GenerationRequest("r", tokens), 0.0)
        sequence.pages = [self.count + 4 * i for i in range(PAGES_EACH)]
        sequence.committed = committed
        self.store.write(sequence.pages, 0, self.features(sequence, 0, committed))
        self.count += 1
        return sequence

    def advance(self, sequence: TokenSequence, count: int) -> None:
        start = sequence.committed
        sequence.committed += count
        sequence.tokens = list(range(1, sequence.committed + 2))
        features = self.features(sequence, start, sequence.committed)
        self.store.write(sequence.pages, start, features)

    def features(self, sequence: TokenSequence, start: int, stop: int) -> np.ndarray:
        return np.array(
            [(sequence.sequence_id, position) for position in range(start, stop)],
            ml_dtypes.bfloat16,
        ).reshape(-1, 2)

    def part(self, sequence: TokenSequence, request: int = -1) -> pb.SequenceDraft:
        """Return what a request says of a sequence, its features checked."""
        cache_id = self.sync.caches[sequence].cache_id
        message = self.wire.sent[request]
        ids = [part.sequence_id for part in message.sequences]
        part = message.sequences[ids.index(cache_id)]
        assert ids.count(cache_id) == 1
        before = sum(each.feature_rows for each in message.sequences[: ids.index(cache_id)])
        width = DESCRIPTION.feature_width
        sent = np.frombuffer(message.features.data, ml_dtypes.bfloat16).reshape(-1, width)
        assert list(message.features.shape) in ([], list(sent.shape))
        start, rows = part.context_start, part.feature_rows
        expected = self.features(sequence, start, start + rows)
        np.testing.assert_array_equal(sent[before : before + rows], expected)
        return part

    def respond(
        self,
        request: int = -1,
        change: Callable[[pb.DraftResponse], None] = lambda response: None,
        after: float = 0.0,
    ) -> None:
        """Queue the right response to a request, changed by `change`, to come after some time."""
        sent = self.wire.sent[request]
        response = pb.DraftResponse(step_id=sent.step_id)
        for part in sent.sequences:
            response.drafts.add(
                sequence_id=part.sequence_id,
                context_length=part.context_start + part.feature_rows,
                token_ids=range(7, 7 + part.draft_length),
            )
        change(response)
        self.wire.respond(response, after)

    def take(
        self,
        request: int = -1,
        change: Callable[[pb.DraftResponse], None] = lambda response: None,
        wait: Literal["none", "any", "all"] = "all",
    ) -> DraftTimes:
        """Have the sync take the right response to a request, changed by `change`."""
        self.respond(request, change)
        return self.sync.collect(wait=wait)

    def request(self, *wanted: tuple[TokenSequence, int], wait: float = TIMEOUT) -> None:
        self.sync.request(wanted, wait)

    def asked(self, sequence: TokenSequence, draft_length: int = 3, wait: float = TIMEOUT) -> int:
        """Ask for a draft; return the id of its draft KV cache."""
        self.sync.request([(sequence, draft_length)], wait)
        return self.sync.caches[sequence].cache_id

    def assert_usual_again(self, sequence: TokenSequence) -> None:
        """The next request makes good whatever was lost, and nothing else is repaired."""
        before = self.repairs.copy()
        self.asked(sequence)
        self.take()
        assert sequence.draft == Draft((7, 8, 9))
        assert not sequence.awaiting_draft
        assert self.sync.caches[sequence].length == sequence.committed
        assert self.repairs == before


def refuse(
    response: pb.DraftResponse,
    cache_id: int,
    expected: int,
    code: pb.SequenceErrorCode.ValueType = pb.SEQUENCE_ERROR_CODE_CONTEXT_MISMATCH,
) -> None:
    [draft] = [each for each in response.drafts if each.sequence_id == cache_id]
    response.drafts.remove(draft)
    response.sequence_errors.add(sequence_id=cache_id, code=code, expected_context_start=expected)
