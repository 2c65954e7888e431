"""What a drafter that learns is sent beyond what drafting needs."""

from dataclasses import replace

import pytest
from tests.verifier.drafting.by_hand import DESCRIPTION, Bench

from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting import outgoing
from blockdraft_verifier.scheduling.sequence import FinishReason, TokenSequence


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(outgoing, "LEARNING_ROWS", 8)
    bench = Bench()
    bench.wire.description = replace(DESCRIPTION, learns=True)
    return bench


def recordable(bench: Bench, committed: int) -> TokenSequence:
    sequence = bench.sequence(committed)
    sequence.request = replace(
        sequence.request, recordable=True, sampling=Sampling(0.5), prompt=(1, 2, 3)
    )
    return sequence


def test_features_go_many_at_a_time_without_being_asked_for(bench: Bench) -> None:
    sequence = recordable(bench, 9)
    bench.sync.send_to_learn([sequence])
    part = bench.part(sequence)
    assert (part.context_start, part.feature_rows, part.draft_length) == (0, 9, 0)
    assert list(part.token_ids) == sequence.tokens[:9]
    assert (part.sample.completion_start, part.sample.temperature) == (3, 0.5)
    assert not sequence.awaiting_draft
    bench.take()
    bench.advance(sequence, 7)
    bench.sync.send_to_learn([sequence])
    assert len(bench.wire.sent) == 1
    bench.advance(sequence, 1)
    bench.sync.send_to_learn([sequence])
    part = bench.part(sequence)
    assert (part.context_start, part.feature_rows) == (9, 8)
    # Once is enough.
    assert not part.HasField("sample")


def test_the_last_features_go_when_a_sequence_has_ended(bench: Bench) -> None:
    sequence = recordable(bench, 3)
    bench.sync.send_to_learn([sequence])
    assert not bench.wire.sent
    sequence.finish_reason = FinishReason.STOP
    bench.sync.send_to_learn([sequence])
    assert bench.part(sequence).feature_rows == 3
    bench.sync.caches.release(sequence)
    bench.sync.tell_released()
    assert len(bench.wire.sent[-1].released_sequence_ids) == 1
    assert not bench.repairs


def test_of_what_is_excluded_nothing_is_sent_to_learn_from(bench: Bench) -> None:
    excluded = bench.sequence(20)
    plain = recordable(bench, 20)
    plain.request = replace(plain.request, max_draft_tokens=0)
    bench.sync.send_to_learn([excluded, plain])
    assert not bench.wire.sent
    # It is drafted for as any other, but must not become a training sample.
    bench.request((excluded, 3))
    assert not bench.part(excluded).HasField("sample")


def test_a_drafter_that_does_not_learn_is_told_and_sent_nothing(bench: Bench) -> None:
    bench.wire.description = DESCRIPTION
    sequence = recordable(bench, 20)
    bench.sync.send_to_learn([sequence])
    assert not bench.wire.sent
    bench.request((sequence, 3))
    assert not bench.part(sequence).HasField("sample")


def test_what_is_under_way_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MAX_CATCH_UP_BYTES", 10 * DESCRIPTION.feature_row_bytes)
    first, second = recordable(bench, 9), recordable(bench, 9)
    bench.sync.send_to_learn([first, second])
    assert [part.feature_rows for part in bench.wire.sent[0].sequences] == [9, 1]
    bench.sync.send_to_learn([first, second])
    assert len(bench.wire.sent) == 1


def test_the_version_that_drafts_is_known(bench: Bench) -> None:
    sequence = recordable(bench, 5)

    def learned(response: pb.DraftResponse) -> None:
        response.version.number, response.version.fingerprint = 3, "f" * 16
        response.version.trained = True

    bench.request((sequence, 3))
    bench.take(change=learned)
    description = bench.sync.description
    assert description is not None
    assert (description.version, description.fingerprint) == (3, "f" * 16)
    assert description.learns
