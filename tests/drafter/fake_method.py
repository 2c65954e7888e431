"""A draft method without a model: it remembers what it was given, and drafts a digest of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.method import DraftCacheLostError, DraftRow, DraftTokens, MethodSpec

SPEC = MethodSpec(
    name="fake",
    block_size=4,
    target_layer_ids=(1, 2),
    feature_width=3,
    feature_dtype=np.dtype(np.float32),
    vocab_size=10,
    max_sequences=3,
    max_context_tokens=12,
    max_feature_rows=5,
    fingerprint="fedcba9876543210",
    trained=True,
)


def digest(features: NDArray[Any], anchor: int, draft_length: int) -> tuple[int, ...]:
    """The tokens FakeMethod drafts from a context: any change of the context changes them."""
    weights = np.arange(1, features.size + 1).reshape(features.shape)
    total = int(np.sum(features * weights)) + 100 * len(features) + anchor
    return tuple((total * (i + 3)) % 997 for i in range(draft_length))


class FakeMethod:
    """Implements DraftMethod on NumPy arrays."""

    def __init__(self) -> None:
        self.spec = SPEC
        self.step_seconds: Sequence[float] = (0.001, 0.002, 0.003)
        self.shortest_step_seconds: Sequence[float] = (0.0005, 0.001, 0.0015)
        self.steps = 0
        self.last_rows: Sequence[DraftRow] = ()
        self.fail_next = False
        self._slots = np.zeros((SPEC.max_sequences, SPEC.max_context_tokens, SPEC.feature_width))

    def warm_up(self) -> None:
        pass

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        self.steps += 1
        self.last_rows = rows
        if self.fail_next:
            self.fail_next = False
            self._slots[:] = np.nan
            raise DraftCacheLostError("the device is gone")
        assert len({row.slot for row in rows}) == len(rows) <= SPEC.max_sequences
        drafts = []
        for row in rows:
            length = row.context_length + row.features.shape[0]
            self._slots[row.slot, row.context_length : length] = row.features
            context = self._slots[row.slot, :length]
            tokens = digest(context, row.anchor_token_id, row.draft_length)
            drafts.append(tokens)
        return drafts
