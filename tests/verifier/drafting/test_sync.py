"""Accepted-token sync against a drafter made by hand that answers as it should."""

from dataclasses import replace

import pytest
from tests.verifier.drafting.by_hand import (
    DESCRIPTION,
    Bench,
    refuse,
)

from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting import outgoing
from blockdraft_verifier.scheduling.sequence import Draft


def test_features_go_once_in_order_and_the_anchor_with_them(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    part = bench.part(sequence)
    assert (part.context_start, part.feature_rows, part.draft_length) == (0, 5, 3)
    assert part.anchor_token_id == sequence.anchor
    assert sequence.awaiting_draft
    bench.take()
    assert sequence.draft == Draft((7, 8, 9))
    sequence.draft = None
    bench.advance(sequence, 3)
    bench.assert_usual_again(sequence)
    part = bench.part(sequence)
    assert (part.context_start, part.feature_rows) == (5, 3)
    assert part.anchor_token_id == sequence.anchor
    assert [request.step_id for request in bench.wire.sent] == [1, 2]
    assert not bench.repairs


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1, -(2**63), -1])
def test_the_drafter_is_told_how_tokens_will_be_chosen(bench: Bench, seed: int) -> None:
    sampled, greedy = bench.sequence(5), bench.sequence(4)
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, seed=seed)
    sampled.request = replace(sampled.request, sampling=sampling)
    bench.request((sampled, 3), (greedy, 3))
    told = bench.part(sampled).sampling
    assert (told.temperature, told.top_k, told.top_p, told.min_p) == (0.5, 7, 0.75, 0.25)
    assert told.seed == seed
    assert not bench.part(greedy).HasField("sampling")


def test_appending_alone_awaits_nothing(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, 0)
    assert not sequence.awaiting_draft
    assert bench.take().waited == 0.0
    assert sequence.draft is None
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).feature_rows == 0


def test_a_full_drafter_is_not_asked_again_for_that_sequence(bench: Bench) -> None:
    refused, other = bench.sequence(5), bench.sequence(5)
    bench.request((refused, 3), (other, 3))
    cache_id = bench.sync.caches[refused].cache_id
    full = pb.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
    bench.take(change=lambda response: refuse(response, cache_id, 0, full))
    assert not refused.draftable
    assert not refused.awaiting_draft
    assert other.draft is not None
    assert not bench.repairs
    bench.request((refused, 3))
    assert len(bench.wire.sent) == 1


@pytest.mark.parametrize(("committed", "fits"), [(30, True), (31, False)])
def test_a_sequence_longer_than_the_drafter_holds(bench: Bench, committed: int, fits: bool) -> None:
    sequence = bench.sequence(29)
    old = bench.asked(sequence)
    bench.take()
    sequence.draft = None
    bench.advance(sequence, committed - 29)
    bench.request((sequence, 3))
    assert sequence.draftable == fits
    assert sequence.awaiting_draft == fits
    if not fits:
        bench.asked(bench.sequence(1))
        released = [i for request in bench.wire.sent for i in request.released_sequence_ids]
        assert released == [old]


def test_released_ids_are_sent_exactly_once(bench: Bench) -> None:
    sequences = [bench.sequence(3) for _ in range(3)]
    bench.request(*((sequence, 0) for sequence in sequences))
    ids = [bench.sync.caches[sequence].cache_id for sequence in sequences]
    for sequence in sequences[:2]:
        bench.sync.caches.release(sequence)
        bench.sync.caches.release(sequence)
    for _ in range(3):
        bench.asked(sequences[2])
    released = [list(request.released_sequence_ids) for request in bench.wire.sent]
    assert released == [[], ids[:2], [], []]


def test_responses_about_released_caches_are_ignored(bench: Bench) -> None:
    drafted, refused = bench.sequence(3), bench.sequence(3)
    bench.request((drafted, 3), (refused, 3))
    cache_id = bench.sync.caches[refused].cache_id
    for sequence in (drafted, refused):
        bench.sync.caches.release(sequence)
        assert not sequence.awaiting_draft
    bench.respond(change=lambda response: refuse(response, cache_id, 0))
    bench.sync.collect(wait="none")
    assert drafted.draft is None
    assert not bench.repairs


@pytest.mark.parametrize(("committed", "rows"), [(5, [4, 1]), (8, [4, 4]), (11, [4, 4, 3])])
def test_what_does_not_fit_one_request_catches_up_while_no_sequence_waits(
    bench: Bench, committed: int, rows: list[int]
) -> None:
    bench.wire.description = replace(DESCRIPTION, max_feature_rows=4)
    sequence, short = bench.sequence(committed), bench.sequence(4)
    bench.request((sequence, 3), (short, 3))
    assert bench.part(short, 0).draft_length == 3
    parts = [bench.part(sequence, 1 + index) for index in range(len(rows))]
    assert [part.feature_rows for part in parts] == rows
    assert [part.context_start for part in parts] == [4 * i for i in range(len(rows))]
    assert not any(part.draft_length for part in parts)
    for part in parts:
        stop = part.context_start + part.feature_rows
        assert part.anchor_token_id == sequence.tokens[stop]
    assert len(bench.wire.sent) == 1 + len(rows)
    assert short.awaiting_draft
    assert not sequence.awaiting_draft
    for index in range(1 + len(rows)):
        bench.take(index)
    assert short.draft == Draft((7, 8, 9))
    bench.assert_usual_again(sequence)


def test_what_is_under_way_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Four bytes a position: two fit each kind of request.
    monkeypatch.setattr(outgoing, "MAX_DRAFT_BYTES", 8)
    monkeypatch.setattr(outgoing, "MAX_CATCH_UP_BYTES", 8)
    sequences = [bench.sequence(count) for count in (1, 1, 5, 1)]
    wanted = [(sequence, 3) for sequence in sequences]

    def rows() -> list[list[int]]:
        return [[part.feature_rows for part in step.sequences] for step in bench.wire.sent]

    bench.request(*wanted)
    assert rows() == [[1, 1], [2]]
    assert [sequence.awaiting_draft for sequence in sequences] == [True, True, False, False]
    # Those behind are asked about again after each step, and get nothing until there is room.
    bench.request(*wanted[2:])
    assert rows() == [[1, 1], [2], [1]]
    bench.respond(0)
    bench.respond(1)
    bench.sync.collect(wait="none")
    bench.request(wanted[2])
    assert rows() == [[1, 1], [2], [1], [2]]
    for index in (2, 3):
        bench.take(index)
    bench.assert_usual_again(sequences[2])
    assert rows()[4:] == [[1]]
    assert all(sequence.draft is not None for sequence in sequences)
    assert not bench.repairs


def test_even_a_position_larger_than_the_room_is_sent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "MAX_DRAFT_BYTES", 0)
    monkeypatch.setattr(outgoing, "MAX_CATCH_UP_BYTES", 0)
    sequence = bench.sequence(2)
    for request in range(2):
        bench.asked(sequence, 0)
        bench.asked(sequence, 0)
        assert len(bench.wire.sent) == request + 1
        bench.take(wait="none")
    assert bench.sync.caches[sequence].length == 2


def test_waiting_for_any_takes_one_response(bench: Bench) -> None:
    first, second = bench.sequence(3), bench.sequence(3)
    behind = bench.sequence(3)
    bench.asked(behind, 0)
    bench.asked(first)
    bench.asked(second)
    # A response without a draft does not end the wait.
    bench.respond(0)
    bench.respond(1)
    bench.sync.collect(wait="any")
    assert first.draft is not None
    assert second.awaiting_draft
    assert not bench.wire.waits
    bench.sync.collect(wait="none")
    assert second.awaiting_draft
    assert not bench.wire.waits


def test_times_split_computing_from_the_rest(bench: Bench) -> None:
    sequence = bench.sequence(3)
    bench.asked(sequence)
    times = bench.take(change=lambda r: r.timings.compute_time.FromMilliseconds(250))
    assert times.computed == 0.25
    assert times.transport == 0.0


def test_closing_ends_it(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.sync.close()
    assert not sequence.awaiting_draft
    assert bench.sync.description is None
    assert bench.link.transport is None
