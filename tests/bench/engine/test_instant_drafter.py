"""The drafter that answers at once: a draft method like any other."""

import ml_dtypes
import numpy as np

from blockdraft_bench.engine.instant_drafter import (
    NO_TARGET,
    VOCAB_SIZE,
    InstantRoom,
    instant_drafter,
)
from blockdraft_drafter.method import ContextRow, DraftMethod

ROOM = InstantRoom(width=6, block_size=4, max_sequences=3, max_context_tokens=10)


def test_has_the_room_it_was_given() -> None:
    loaded = instant_drafter(ROOM)
    assert isinstance(loaded.method, DraftMethod)
    spec = loaded.method.spec
    assert (spec.feature_width, spec.block_size, spec.max_context_tokens) == (6, 4, 10)
    assert spec.max_sequences == loaded.pool.size == 3
    assert spec.feature_dtype == ml_dtypes.bfloat16
    assert loaded.target_fingerprint == NO_TARGET
    assert loaded.method.step_seconds[0] > 0


def test_proposes_as_many_tokens_as_wanted() -> None:
    features = np.zeros((2, 6), ml_dtypes.bfloat16)
    rows = [ContextRow(slot, 0, features, 1, length) for slot, length in enumerate((3, 0, 1))]
    proposals = instant_drafter(ROOM).method.step(rows)
    assert [len(each.token_ids) for each in proposals] == [3, 0, 1]
    assert all(0 <= token < VOCAB_SIZE for each in proposals for token in each.token_ids)
