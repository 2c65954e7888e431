"""Accepted-token sync against a drafter made by hand: every repair by itself."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import pytest

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore
from blockdraft_verifier.drafting import sync
from blockdraft_verifier.drafting.link import DrafterDescription, DraftTransport, TransportError
from blockdraft_verifier.drafting.sync import DraftSync, leading_chain
from blockdraft_verifier.scheduling.sequence import GenerationRequest, Proposal, Sequence

VOCAB = 50
PAGE_SIZE, PAGES_EACH = 4, 10
TIMEOUT = 1.0
DESCRIPTION = DrafterDescription(
    method="by-hand",
    block_size=5,
    target_layer_ids=(0,),
    feature_width=2,
    max_feature_rows=100,
    max_context_tokens=30,
    fingerprint="0" * 16,
    trained=True,
    step_seconds=(0.001,),
)


@dataclass
class HandTransport:
    """Keeps what was sent; a test queues the answers."""

    description: DrafterDescription = DESCRIPTION
    sent: list[pb.DraftRequest] = field(default_factory=list)
    answers: deque[pb.DraftResponse] = field(default_factory=deque)
    broken: bool = False
    waited: float = 0.0

    def send(self, request: pb.DraftRequest) -> None:
        if self.broken:
            raise TransportError("broken")
        self.sent.append(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        if self.broken:
            raise TransportError("broken")
        if self.answers:
            return self.answers.popleft()
        self.waited += max(0.0, timeout_seconds)
        return None

    def close(self) -> None:
        self.broken = True


@dataclass
class HandLink:
    transport: HandTransport | None = field(default_factory=HandTransport)

    def current(self) -> DraftTransport | None:
        return self.transport

    def lost(self, transport: DraftTransport) -> None:
        assert transport is self.transport
        self.transport = None

    def close(self) -> None:
        self.transport = None


class Bench:
    """A sync, its drafter, and sequences with known features."""

    def __init__(self) -> None:
        self.link = HandLink()
        self.wire = self.link.transport = HandTransport()
        self.repairs: Counter[str] = Counter()
        self.sync = DraftSync(
            self.link,
            VOCAB,
            TIMEOUT,
            lambda cause: self.repairs.update([cause]),
            clock=lambda: self.wire.waited,
        )
        self.store = FeatureStore(
            4 * PAGES_EACH, PAGE_SIZE, DESCRIPTION.feature_width, np.dtype(ml_dtypes.bfloat16)
        )
        self.sync.use_features(self.store)
        assert self.sync.poll() == DESCRIPTION
        self.count = 0

    def sequence(self, committed: int) -> Sequence:
        """Return a sequence whose features say which sequence and position they are of."""
        tokens = tuple(range(1, committed + 2))
        sequence = Sequence(self.count, GenerationRequest("r", tokens), 0.0)
        sequence.pages = [self.count + 4 * i for i in range(PAGES_EACH)]
        sequence.committed = committed
        self.store.write(sequence.pages, 0, self.features(sequence, 0, committed))
        self.count += 1
        return sequence

    def advance(self, sequence: Sequence, count: int) -> None:
        start = sequence.committed
        sequence.committed += count
        sequence.tokens = list(range(1, sequence.committed + 2))
        features = self.features(sequence, start, sequence.committed)
        self.store.write(sequence.pages, start, features)

    def features(self, sequence: Sequence, start: int, stop: int) -> np.ndarray:
        return np.array(
            [(sequence.sequence_id, position) for position in range(start, stop)],
            ml_dtypes.bfloat16,
        ).reshape(-1, 2)

    def part(self, sequence: Sequence, request: int = -1) -> pb.SequenceDraft:
        """Return what a request says of a sequence, its features checked."""
        context_id = self.sync.contexts[sequence].context_id
        [part] = [p for p in self.wire.sent[request].sequences if p.sequence_id == context_id]
        rows, width = part.features.shape
        sent = np.frombuffer(part.features.data, ml_dtypes.bfloat16).reshape(rows, width)
        start = part.context_start
        np.testing.assert_array_equal(sent, self.features(sequence, start, start + rows))
        return part

    def answer(
        self,
        request: int = -1,
        change: Callable[[pb.DraftResponse], None] = lambda response: None,
    ) -> pb.DraftResponse:
        """Queue the right answer to a request, changed by `change`."""
        sent = self.wire.sent[request]
        response = pb.DraftResponse(step_id=sent.step_id)
        for part in sent.sequences:
            response.proposals.add(
                sequence_id=part.sequence_id,
                context_length=part.context_start + part.features.shape[0],
                token_ids=range(7, 7 + part.draft_length),
            )
        change(response)
        self.wire.answers.append(response)
        return response

    def asked(self, sequence: Sequence, draft_length: int = 3) -> int:
        """Ask for a proposal; return the id of the context."""
        self.sync.request([(sequence, draft_length)])
        return self.sync.contexts[sequence].context_id

    def assert_usual_again(self, sequence: Sequence) -> None:
        """The next request makes good whatever was lost, and nothing else is repaired."""
        before = self.repairs.copy()
        self.asked(sequence)
        self.answer()
        self.sync.collect(wait="all")
        assert sequence.proposal == Proposal((7, 8, 9))
        assert not sequence.awaiting_draft
        assert self.sync.contexts[sequence].length == sequence.committed
        assert self.repairs == before


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_features_go_once_in_order_and_the_anchor_with_them(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    part = bench.part(sequence)
    assert (part.context_start, part.features.shape[0], part.draft_length) == (0, 5, 3)
    assert part.anchor_token_id == sequence.anchor
    assert sequence.awaiting_draft
    bench.answer()
    bench.sync.collect(wait="all")
    assert sequence.proposal == Proposal((7, 8, 9))
    sequence.proposal = None
    bench.advance(sequence, 3)
    bench.assert_usual_again(sequence)
    part = bench.part(sequence)
    assert (part.context_start, part.features.shape[0]) == (5, 3)
    assert part.anchor_token_id == sequence.anchor
    assert [request.step_id for request in bench.wire.sent] == [1, 2]
    assert not bench.repairs


def test_appending_alone_awaits_nothing(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    assert not sequence.awaiting_draft
    bench.answer()
    assert bench.sync.collect(wait="all").waited == 0.0
    assert sequence.proposal is None
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).features.shape == [0, 2]


@pytest.mark.parametrize("length", [4, 6, 0])
@pytest.mark.parametrize("draft_length", [0, 3])
def test_another_context_length_builds_the_context_anew(
    bench: Bench, length: int, draft_length: int
) -> None:
    sequence = bench.sequence(5)
    old = bench.asked(sequence, draft_length)

    def lie(response: pb.DraftResponse) -> None:
        response.proposals[0].context_length = length

    bench.answer(change=lie)
    bench.sync.collect(wait="all")
    assert bench.repairs == {"context_mismatch": 1}
    assert sequence.proposal is None
    assert not sequence.awaiting_draft
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == 0
    assert bench.sync.contexts[sequence].context_id != old
    assert list(bench.wire.sent[-1].released_sequence_ids) == [old]


def test_a_missing_answer_builds_that_context_anew_and_no_other(bench: Bench) -> None:
    lost, kept = bench.sequence(5), bench.sequence(6)
    bench.sync.request([(lost, 3), (kept, 3)])
    bench.answer(change=lambda response: response.proposals.remove(response.proposals[0]))
    bench.sync.collect(wait="all")
    assert bench.repairs == {"missing_answer": 1}
    assert lost.proposal is None
    assert not lost.awaiting_draft
    assert kept.proposal is not None
    kept.proposal = None
    bench.assert_usual_again(lost)
    assert bench.part(lost).context_start == 0
    bench.assert_usual_again(kept)
    assert bench.part(kept).context_start == 6


@pytest.mark.parametrize(
    ("tokens", "fits"),
    [
        ([VOCAB - 1, 0, 1], True),
        ([1, 2], True),
        ([], True),
        ([1, VOCAB], False),
        ([-1], False),
        ([1, 2, 3, 4], False),
    ],
)
def test_malformed_proposals_are_not_taken(bench: Bench, tokens: list[int], fits: bool) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)

    def swap(response: pb.DraftResponse) -> None:
        response.proposals[0].token_ids[:] = tokens

    bench.answer(change=swap)
    bench.sync.collect(wait="all")
    assert not sequence.awaiting_draft
    if fits:
        assert sequence.proposal == Proposal(tuple(tokens))
        assert not bench.repairs
    else:
        assert sequence.proposal is None
        assert bench.repairs == {"malformed_proposal": 1}
        bench.assert_usual_again(sequence)
        assert bench.part(sequence).context_start == 0


def test_tokens_nobody_asked_for_are_malformed(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    bench.answer(change=lambda response: response.proposals[0].token_ids.append(1))
    bench.sync.collect(wait="none")
    assert sequence.proposal is None
    assert bench.repairs == {"malformed_proposal": 1}


def test_a_repeated_answer_is_ignored(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.answer()
    bench.sync.collect(wait="all")
    sequence.proposal = None
    bench.advance(sequence, 1)
    bench.asked(sequence)
    bench.answer(0)
    bench.answer(1)
    bench.sync.collect(wait="all")
    assert bench.repairs == {"repeated_answer": 1}
    assert sequence.proposal is not None
    assert bench.sync.contexts[sequence].length == 6


def test_an_answer_out_of_order_ends_the_stream(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    bench.asked(sequence)
    bench.answer(1)
    bench.sync.collect(wait="all")
    assert_lost(bench, sequence)


@pytest.mark.parametrize("expected", [0, 2, 5, 8])
def test_a_refusal_is_made_good_from_where_the_drafter_stands(bench: Bench, expected: int) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    bench.answer()
    bench.sync.collect(wait="none")
    bench.advance(sequence, 3)
    context_id = bench.asked(sequence)
    bench.answer(change=lambda response: refuse(response, context_id, expected))
    bench.sync.collect(wait="all")
    assert bench.repairs == {"resent_context": 1}
    assert sequence.proposal is None
    assert not sequence.awaiting_draft
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == expected
    assert bench.sync.contexts[sequence].context_id == context_id


@pytest.mark.parametrize("expected", [9, -1])
def test_a_drafter_ahead_of_what_is_committed_starts_anew(bench: Bench, expected: int) -> None:
    sequence = bench.sequence(8)
    context_id = bench.asked(sequence)
    bench.answer(change=lambda response: refuse(response, context_id, expected))
    bench.sync.collect(wait="all")
    assert bench.repairs == {"context_mismatch": 1}
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == 0
    assert list(bench.wire.sent[-1].released_sequence_ids) == [context_id]


def refuse(
    response: pb.DraftResponse,
    context_id: int,
    expected: int,
    code: pb.SequenceErrorCode.ValueType = pb.SEQUENCE_ERROR_CODE_CONTEXT_MISMATCH,
) -> None:
    [proposal] = [p for p in response.proposals if p.sequence_id == context_id]
    response.proposals.remove(proposal)
    response.sequence_errors.add(sequence_id=context_id, code=code, expected_context_start=expected)


def test_a_full_drafter_is_not_asked_again_for_that_sequence(bench: Bench) -> None:
    refused, other = bench.sequence(5), bench.sequence(5)
    bench.sync.request([(refused, 3), (other, 3)])
    context_id = bench.sync.contexts[refused].context_id
    full = pb.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
    bench.answer(change=lambda response: refuse(response, context_id, 0, full))
    bench.sync.collect(wait="all")
    assert not refused.draftable
    assert not refused.awaiting_draft
    assert other.proposal is not None
    assert not bench.repairs
    bench.sync.request([(refused, 3)])
    assert len(bench.wire.sent) == 1


@pytest.mark.parametrize(("committed", "fits"), [(30, True), (31, False)])
def test_a_context_longer_than_the_drafter_holds(bench: Bench, committed: int, fits: bool) -> None:
    sequence = bench.sequence(29)
    old = bench.asked(sequence)
    bench.answer()
    bench.sync.collect(wait="all")
    sequence.proposal = None
    bench.advance(sequence, committed - 29)
    bench.sync.request([(sequence, 3)])
    assert sequence.draftable == fits
    assert sequence.awaiting_draft == fits
    if not fits:
        bench.asked(bench.sequence(1))
        released = [i for request in bench.wire.sent for i in request.released_sequence_ids]
        assert released == [old]


def test_released_ids_are_sent_exactly_once(bench: Bench) -> None:
    sequences = [bench.sequence(3) for _ in range(3)]
    bench.sync.request([(sequence, 0) for sequence in sequences])
    ids = [bench.sync.contexts[sequence].context_id for sequence in sequences]
    for sequence in sequences[:2]:
        bench.sync.release(sequence)
        bench.sync.release(sequence)
    for _ in range(3):
        bench.asked(sequences[2])
    released = [list(request.released_sequence_ids) for request in bench.wire.sent]
    assert released == [[], ids[:2], [], []]


def test_answers_about_released_contexts_are_nothing(bench: Bench) -> None:
    proposed, refused = bench.sequence(3), bench.sequence(3)
    bench.sync.request([(proposed, 3), (refused, 3)])
    context_id = bench.sync.contexts[refused].context_id
    for sequence in (proposed, refused):
        bench.sync.release(sequence)
        assert not sequence.awaiting_draft
    bench.answer(change=lambda response: refuse(response, context_id, 0))
    bench.sync.collect(wait="none")
    assert proposed.proposal is None
    assert not bench.repairs


@pytest.mark.parametrize(("waited", "kept"), [(TIMEOUT, False), (0.999 * TIMEOUT, True)])
def test_a_late_answer_ends_the_stream(bench: Bench, waited: float, kept: bool) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    receive = bench.wire.receive

    def late(timeout_seconds: float) -> pb.DraftResponse | None:
        if bench.wire.waited == 0.0:
            bench.wire.waited = waited
            return None
        if not bench.wire.answers:
            bench.answer()
        return receive(timeout_seconds)

    bench.wire.receive = late  # type: ignore[method-assign]
    times = bench.sync.collect(wait="all")
    assert times.waited == pytest.approx(waited)
    if kept:
        assert sequence.proposal is not None
        assert not bench.repairs
    else:
        assert_lost(bench, sequence)


def assert_lost(bench: Bench, sequence: Sequence) -> None:
    """Nothing awaits the lost stream, and a new one starts from nothing."""
    assert bench.repairs == {"stream_broken": 1}
    assert bench.link.transport is None
    assert bench.sync.description is None
    assert not bench.sync.awaiting
    assert not sequence.awaiting_draft
    bench.sync.request([(sequence, 3)])
    bench.sync.collect(wait="all")
    assert bench.sync.poll() is None
    bench.wire = bench.link.transport = HandTransport()
    assert bench.sync.poll() == DESCRIPTION
    assert bench.sync.poll() is None
    bench.assert_usual_again(sequence)
    assert bench.wire.sent[0].step_id == 1
    assert bench.part(sequence).context_start == 0
    assert not bench.wire.sent[0].released_sequence_ids


def test_a_broken_stream_while_receiving(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.wire.broken = True
    bench.sync.collect(wait="all")
    assert_lost(bench, sequence)


def test_a_broken_stream_while_sending(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.wire.broken = True
    bench.sync.request([(sequence, 3)])
    assert_lost(bench, sequence)


@pytest.mark.parametrize(
    ("committed", "rows"), [(4, [4]), (5, [4, 1]), (8, [4, 4]), (11, [4, 4, 3])]
)
def test_long_contexts_go_in_bounded_chunks(bench: Bench, committed: int, rows: list[int]) -> None:
    bench.wire.description = replace(DESCRIPTION, max_feature_rows=4)
    sequence, short = bench.sequence(committed), bench.sequence(2)
    bench.sync.request([(sequence, 3), (short, 3)])
    parts = [bench.part(sequence, index) for index in range(len(rows))]
    assert [part.features.shape[0] for part in parts] == rows
    assert [part.context_start for part in parts] == [4 * i for i in range(len(rows))]
    # Only the last chunk asks for a proposal.
    assert [part.draft_length for part in parts] == [0] * (len(rows) - 1) + [3]
    for part in parts:
        stop = part.context_start + part.features.shape[0]
        assert part.anchor_token_id == sequence.tokens[stop]
    assert len(bench.wire.sent) == len(rows)
    for index in range(len(rows)):
        bench.answer(index)
    bench.sync.collect(wait="all")
    assert sequence.proposal == short.proposal == Proposal((7, 8, 9))
    assert not bench.repairs


def test_a_request_carries_a_bounded_number_of_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four bytes per feature: a request is closed once it has two or more.
    monkeypatch.setattr(sync, "MAX_REQUEST_FEATURE_BYTES", 8)
    sequences = [bench.sequence(count) for count in (1, 1, 2, 1)]
    bench.sync.request([(sequence, 3) for sequence in sequences])
    rows = [[p.features.shape[0] for p in request.sequences] for request in bench.wire.sent]
    assert rows == [[1, 1], [2], [1]]
    for index in range(3):
        bench.answer(index)
    bench.sync.collect(wait="all")
    assert all(sequence.proposal is not None for sequence in sequences)


def test_waiting_for_any_takes_one_answer(bench: Bench) -> None:
    first, second = bench.sequence(3), bench.sequence(3)
    bench.asked(first)
    bench.asked(second)
    bench.answer(0)
    bench.sync.collect(wait="any")
    assert first.proposal is not None
    assert second.awaiting_draft
    assert bench.wire.waited == 0.0
    bench.sync.collect(wait="none")
    assert second.awaiting_draft
    assert bench.wire.waited == 0.0


def test_times_split_computing_from_the_rest(bench: Bench) -> None:
    sequence = bench.sequence(3)
    bench.asked(sequence)
    bench.answer(change=lambda r: r.timings.compute_time.FromMilliseconds(250))
    times = bench.sync.collect(wait="all")
    assert times.computed == 0.25
    assert times.transport == 0.0


@pytest.mark.parametrize(
    ("tokens", "parents", "chain"),
    [
        ([5, 6, 7], [], (5, 6, 7)),
        ([5, 6, 7], [-1, 0, 1], (5, 6, 7)),
        ([5, 6, 7], [-1, 0, 0], (5, 6)),
        ([5, 6, 7], [-1, -1, 0], (5,)),
        ([5, 6, 7], [0, 0, 1], ()),
        ([5, 6, 7], [-1, 0], (5, 6)),
        ([5], [-1, 0, 1], (5,)),
    ],
)
def test_a_tree_is_cut_to_its_leading_chain(
    bench: Bench, tokens: list[int], parents: list[int], chain: tuple[int, ...]
) -> None:
    assert leading_chain(pb.Proposal(token_ids=tokens, parents=parents)) == chain
    sequence = bench.sequence(5)
    bench.asked(sequence)

    def branch(response: pb.DraftResponse) -> None:
        response.proposals[0].token_ids[:] = tokens
        response.proposals[0].parents[:] = parents

    bench.answer(change=branch)
    bench.sync.collect(wait="all")
    assert sequence.proposal == Proposal(chain)


def test_log_probs_are_those_of_the_tokens_kept(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)

    def branch(response: pb.DraftResponse) -> None:
        response.proposals[0].parents[:] = [-1, 0, 0]
        response.proposals[0].log_probs[:] = [-1.0, -2.0, -3.0]

    bench.answer(change=branch)
    bench.sync.collect(wait="all")
    assert sequence.proposal == Proposal((7, 8), (-1.0, -2.0))


def test_closing_ends_it(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.sync.close()
    assert not sequence.awaiting_draft
    assert bench.sync.description is None
    assert bench.link.transport is None
