"""The link without a wire, failures that are not hidden, and the room a draft has."""

import pytest
from tests.drafter.fake_method import SPEC, FakeMethod

from blockdraft_bench.engine.decoding import (
    EngineCapacity,
    InProcessTransport,
    engine_settings,
    whole_draft,
)
from blockdraft_bench.errors import BenchError, BenchUsageError
from blockdraft_drafter.method import DraftCacheLostError
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.session import SlotPool, StepOutOfOrderError
from blockdraft_protos.v1 import drafter_pb2 as pb

TARGET = "0123456789abcdef"


def loaded() -> LoadedMethod:
    return LoadedMethod(FakeMethod(), SlotPool(SPEC.max_sequences), TARGET)


def draft_request(step_id: int = 1) -> pb.DraftRequest:
    rows = pb.Tensor(shape=(1, 3), dtype=pb.DATA_TYPE_FLOAT32, data=bytes(12))
    part = pb.SequenceDraft(sequence_id=1, feature_rows=1, anchor_token_id=2, draft_length=3)
    return pb.DraftRequest(step_id=step_id, sequences=[part], features=rows)


def test_describes_the_method() -> None:
    description = InProcessTransport(loaded()).description
    assert description.method == SPEC.name
    assert description.block_size == SPEC.block_size
    assert description.features.layer_ids == SPEC.target_layer_ids
    assert description.max_context_tokens == SPEC.max_context_tokens
    assert description.step_seconds == (0.001, 0.002, 0.003)


def test_answers_every_request_once_and_gives_contexts_back() -> None:
    drafter = loaded()
    transport = InProcessTransport(drafter)
    assert transport.current() is transport
    assert transport.receive(0.0) is None
    transport.send(draft_request())
    completion = transport.receive(0.0)
    assert completion is not None
    assert len(completion.drafts[0].token_ids) == 3
    assert transport.receive(0.0) is None
    assert drafter.pool.used == 1
    transport.close()
    assert drafter.pool.used == 0


def test_failures_of_the_drafter_are_raised() -> None:
    drafter = loaded()
    transport = InProcessTransport(drafter)
    transport.send(draft_request(step_id=2))
    with pytest.raises(StepOutOfOrderError):
        transport.receive(0.0)
    assert isinstance(drafter.method, FakeMethod)
    drafter.method.fail_next = True
    transport.send(draft_request())
    with pytest.raises(DraftCacheLostError):
        transport.receive(0.0)
    with pytest.raises(BenchError, match="out of step"):
        transport.lost(transport)


def test_a_whole_draft_is_a_block_less_its_anchor() -> None:
    assert whole_draft(None, 8) == 7
    assert whole_draft(3, 8) == 3
    for wrong in (0, 8):
        with pytest.raises(BenchUsageError, match="1 to 7"):
            whole_draft(wrong, 8)


def test_every_sequence_has_room_for_its_block_and_its_whole_length() -> None:
    settings = engine_settings(
        EngineCapacity(32, 100, "float32"), block_size=16, draft_policy="fixed", prompt_lookup=False
    )
    assert settings.scheduler.max_sequences == 32
    # A block of each, and one token more for a waiting prompt.
    assert settings.scheduler.max_step_tokens >= 32 * 16 + 1
    assert settings.num_pages * settings.page_size >= 32 * 100
    assert settings.draft_policy == "fixed"
