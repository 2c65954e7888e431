"""A late drafter holds no sequence up, and is sent no more than it has answered."""

import pytest
from tests.verifier.drafting.by_hand import TIMEOUT, Bench

from blockdraft_verifier.drafting.sync import LEAVING_ALONE
from blockdraft_verifier.scheduling.sequence import Draft, TokenSequence

WAIT = TIMEOUT / 8


def miss(bench: Bench) -> TokenSequence:
    """Return a sequence whose draft did not come in time."""
    sequence = bench.sequence(5)
    bench.asked(sequence, wait=WAIT)
    times = bench.sync.collect(wait="all")
    assert times.missed == 1
    assert times.waited == pytest.approx(WAIT)
    assert not sequence.awaiting_draft
    return sequence


def test_no_sequence_waits_beyond_the_deadline(bench: Bench) -> None:
    miss(bench)
    assert bench.sync.collect(wait="all").waited == 0.0
    assert not bench.repairs
    assert bench.sync.description is not None


def test_deadlines_hold_without_waiting(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, wait=WAIT)
    assert not bench.sync.collect(wait="none").missed
    assert sequence.awaiting_draft
    bench.clock.now += WAIT
    assert bench.sync.collect(wait="none").missed == 1
    assert not sequence.awaiting_draft


def test_waiting_for_any_ends_at_the_first_deadline(bench: Bench) -> None:
    first, second = bench.sequence(5), bench.sequence(5)
    bench.asked(first, wait=WAIT)
    bench.asked(second, wait=2 * WAIT)
    assert bench.sync.collect(wait="any").waited == pytest.approx(WAIT)
    assert (first.awaiting_draft, second.awaiting_draft) == (False, True)


def test_a_response_that_is_there_is_in_time(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence, wait=WAIT)
    bench.respond()
    bench.clock.now += 2 * TIMEOUT
    assert not bench.sync.collect(wait="none").missed
    assert sequence.draft == Draft((7, 8, 9))
    assert not bench.repairs


def test_a_late_draft_is_dropped_if_its_sequence_went_on(bench: Bench) -> None:
    sequence = miss(bench)
    bench.advance(sequence, 1)
    times = bench.take(change=lambda r: r.timings.compute_time.FromMilliseconds(1))
    assert sequence.draft is None
    assert not bench.repairs
    [late] = times.late
    assert (late.drafts, late.computed) == (1, 0.001)
    assert late.elapsed == pytest.approx(WAIT)
    # What is learned of late responses must not look like a wait of this step.
    assert (times.computed, times.responses, times.drafts) == (0.0, 0, 0)
    bench.clock.now += LEAVING_ALONE.max_seconds
    bench.assert_usual_again(sequence)
    assert bench.part(sequence).context_start == 5


def test_a_late_draft_is_taken_if_its_sequence_has_not_gone_on(bench: Bench) -> None:
    sequence = miss(bench)
    bench.take(wait="none")
    assert sequence.draft == Draft((7, 8, 9))


def test_a_late_drafter_is_sent_nothing_until_it_has_answered(bench: Bench) -> None:
    sequence = miss(bench)
    other = bench.sequence(5)
    bench.clock.now += 4 * LEAVING_ALONE.initial_seconds
    for _ in range(3):
        bench.advance(sequence, 1)
        bench.request((sequence, 3), (other, 0), wait=WAIT)
        bench.sync.caches.release(other)
        bench.sync.tell_released()
        assert bench.sync.collect(wait="all").waited == 0.0
    assert len(bench.wire.sent) == 1
    bench.take(wait="none")
    bench.assert_usual_again(sequence)


def test_a_late_drafter_is_left_alone_for_some_time(bench: Bench) -> None:
    sequence = miss(bench)
    bench.take(wait="none")
    bench.advance(sequence, 1)
    sequence.draft = None
    bench.asked(sequence)
    assert len(bench.wire.sent) == 1
    bench.clock.now += LEAVING_ALONE.initial_seconds
    bench.assert_usual_again(sequence)
    assert len(bench.wire.sent) == 2


def test_pauses_double_up_to_the_longest_until_drafts_come_in_time(bench: Bench) -> None:
    sync = bench.sync
    assert sync.left_alone_seconds == 0.0
    longest = LEAVING_ALONE.initial_seconds
    for _ in range(12):
        miss(bench)
        assert longest / 2 <= sync.left_alone_seconds <= longest
        bench.take(wait="none")
        bench.clock.now += sync.left_alone_seconds
        longest = min(2 * longest, LEAVING_ALONE.max_seconds)
    assert longest == LEAVING_ALONE.max_seconds
    bench.assert_usual_again(bench.sequence(5))
    miss(bench)
    assert sync.left_alone_seconds <= LEAVING_ALONE.initial_seconds


def test_the_end_of_an_idle_stream_is_noticed(bench: Bench) -> None:
    sequence = bench.sequence(5)
    bench.asked(sequence)
    bench.take()
    assert bench.sync.poll() is None
    assert bench.sync.description is not None
    bench.wire.broken = True
    assert bench.sync.poll() is None
    assert bench.sync.description is None
    assert bench.link.transport is None


def test_released_caches_are_told_without_a_request(bench: Bench) -> None:
    sequence = bench.sequence(5)
    cache_id = bench.asked(sequence)
    bench.take()
    bench.sync.tell_released()
    assert len(bench.wire.sent) == 1
    bench.sync.caches.release(sequence)
    for _ in range(2):
        bench.sync.tell_released()
    assert [list(request.released_sequence_ids) for request in bench.wire.sent] == [
        [],
        [cache_id],
    ]
    assert bench.take().waited == 0.0
    assert not bench.repairs


@pytest.mark.parametrize(("rows", "backlogged"), [(5, False), (6, True)])
def test_more_features_than_a_verification_commits_are_a_backlog(
    bench: Bench, rows: int, backlogged: bool
) -> None:
    bench.asked(bench.sequence(rows))
    assert bench.take().backlogged == backlogged
