"""Whatever goes wrong between verifier and drafter: every repair of the sync by itself."""

import pytest
from tests.verifier.drafting.by_hand import (
    DESCRIPTION,
    TIMEOUT,
    VOCAB,
    Bench,
    refuse,
)

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting.draft_caches import MAX_REFUSALS
from blockdraft_verifier.scheduling.sequence import Draft, TokenSequence


@pytest.mark.parametrize("length", [4, 6, 0])
@pytest.mark.parametrize("draft_length", [0, 3])
def test_another_context_length_builds_the_cache_anew(
    bench: Bench, length: int, draft_length: int
) -> None:
    sequence = bench.sequence(5)
    old = bench.asked(sequence, draft_length)

    def lie(response: pb.DraftResponse) -> None:
        response.drafts[0].context_length = length

    bench.take(change=lie)
    assert bench.repairs == {"context_mismatch": 1}
    assert sequence.draft is None
    assert not sequence.awaiting_draft
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == 0
    assert bench.sync.caches[sequence].cache_id != old
    assert list(bench.wire.sent[-1].released_sequence_ids) == [old]


def test_a_missing_response_builds_that_cache_anew_and_no_other(bench: Bench) -> None:
    lost, kept = bench.sequence(5), bench.sequence(6)
    bench.request((lost, 3), (kept, 3))
    bench.take(change=lambda response: response.drafts.remove(response.drafts[0]))
    assert bench.repairs == {"missing_response": 1}
    assert lost.draft is None
    assert not lost.awaiting_draft
    assert kept.draft is not None
    kept.draft = None
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
def test_malformed_drafts_are_not_taken(bench: Bench, tokens: list[int], fits: bool) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)

    def swap(response: pb.DraftResponse) -> None:
        response.drafts[0].token_ids[:] = tokens

    bench.take(change=swap)
    assert not sequence.awaiting_draft
    if fits:
        assert sequence.draft == Draft(tuple(tokens), ended_early=len(tokens) < 3)
        assert not bench.repairs
    else:
        assert sequence.draft is None
        assert bench.repairs == {"malformed_draft": 1}
        bench.assert_usual_again(sequence)
        assert bench.part(sequence).context_start == 0


def test_tokens_that_were_not_asked_for_are_malformed(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    bench.respond(change=lambda response: response.drafts[0].token_ids.append(1))
    bench.sync.collect(wait="none")
    assert sequence.draft is None
    assert bench.repairs == {"malformed_draft": 1}


def test_a_repeated_response_is_ignored(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.take()
    sequence.draft = None
    bench.advance(sequence, 1)
    bench.asked(sequence)
    bench.respond(0)
    bench.take(1)
    assert bench.repairs == {"repeated_response": 1}
    assert sequence.draft is not None
    assert bench.sync.caches[sequence].length == 6


def test_a_response_out_of_order_ends_the_stream(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    bench.asked(sequence)
    bench.take(1)
    assert_lost(bench, sequence)


@pytest.mark.parametrize("expected", [0, 2, 5, 8])
def test_a_refusal_is_made_good_from_where_the_drafter_stands(bench: Bench, expected: int) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    bench.take(wait="none")
    bench.advance(sequence, 3)
    cache_id = bench.asked(sequence)
    bench.take(change=lambda response: refuse(response, cache_id, expected))
    assert bench.repairs == {"resent_features": 1}
    assert sequence.draft is None
    assert not sequence.awaiting_draft
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == expected
    assert bench.sync.caches[sequence].cache_id == cache_id


def test_a_draft_ends_a_row_of_refusals(bench: Bench) -> None:
    sequence = bench.sequence(5)
    cache_id = bench.asked(sequence)
    for _ in range(2):
        for _ in range(MAX_REFUSALS):
            bench.take(change=lambda response: refuse(response, cache_id, 0))
            bench.asked(sequence)
        bench.take()
        sequence.draft = None
        bench.asked(sequence)
    assert sequence.draftable


@pytest.mark.parametrize("expected", [9, -1])
def test_a_drafter_ahead_of_what_is_committed_starts_anew(bench: Bench, expected: int) -> None:
    sequence = bench.sequence(8)
    cache_id = bench.asked(sequence)
    bench.take(change=lambda response: refuse(response, cache_id, expected))
    assert bench.repairs == {"context_mismatch": 1}
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == 0
    assert list(bench.wire.sent[-1].released_sequence_ids) == [cache_id]


@pytest.mark.parametrize(("waited", "kept"), [(1.001 * TIMEOUT, False), (TIMEOUT, True)])
def test_a_late_response_ends_the_stream(bench: Bench, waited: float, kept: bool) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.respond(after=waited)
    times = bench.sync.collect(wait="all")
    assert times.waited == pytest.approx(min(waited, TIMEOUT))
    if kept:
        assert sequence.draft is not None
        assert not bench.repairs
    else:
        assert_lost(bench, sequence)


def assert_lost(bench: Bench, sequence: TokenSequence) -> None:
    """Nothing awaits the lost stream, and a new one starts from nothing."""
    assert bench.repairs == {"stream_broken": 1}
    assert bench.link.transport is None
    assert bench.sync.description is None
    assert not bench.sync.caches.awaiting
    assert not sequence.awaiting_draft
    bench.request((sequence, 3))
    bench.sync.collect(wait="all")
    assert bench.sync.poll() is None
    bench.connect()
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
    bench.request((sequence, 3))
    assert_lost(bench, sequence)
