"""A drafter that answers at once, for measurements of everything but drafting; without jax."""

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from blockdraft_drafter.method import ContextRow, MethodSpec, Proposal
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.session import SlotPool
from blockdraft_runtime.settings.drafter import DrafterSettings

# That of Llama 3, so that token ids take as many bytes on the wire as they really do.
VOCAB_SIZE = 128_256
# Fingerprint of the target that is not there.
NO_TARGET = "0" * 16


@dataclass(frozen=True, slots=True)
class InstantRoom:
    """What an instant drafter takes and holds.

    Attributes:
        width: Elements of a feature.
        block_size: Tokens of a block, the anchor included.
        max_sequences: Context slots.
        max_context_tokens: Positions of a slot.
    """

    width: int
    block_size: int
    max_sequences: int
    max_context_tokens: int


class InstantMethod:
    """A `DraftMethod` that neither keeps features nor computes: its proposals are made before."""

    # Not zero, which a cost model would take for unknown.
    step_seconds: Sequence[float] = (1e-6,)
    shortest_step_seconds: Sequence[float] = ()

    def __init__(self, room: InstantRoom) -> None:
        """Make a proposal of every length."""
        self.spec = MethodSpec(
            name="instant",
            block_size=room.block_size,
            target_layer_ids=(0,),
            feature_width=room.width,
            feature_dtype=np.dtype(ml_dtypes.bfloat16),
            vocab_size=VOCAB_SIZE,
            max_sequences=room.max_sequences,
            max_context_tokens=room.max_context_tokens,
            max_feature_rows=DrafterSettings().max_feature_rows,
            fingerprint="0" * 16,
            trained=False,
        )
        rng = np.random.default_rng(0)
        tokens = rng.integers(VOCAB_SIZE, size=room.block_size - 1).tolist()
        self._proposals = [Proposal(tuple(tokens[:length])) for length in range(room.block_size)]

    def warm_up(self) -> None:
        """There is nothing to compile."""

    def step(self, rows: Sequence[ContextRow]) -> list[Proposal]:
        """Return a made-up proposal of the wanted length for each row."""
        return [self._proposals[row.draft_length] for row in rows]


def instant_drafter(room: InstantRoom) -> LoadedMethod:
    """Return a drafter that is ready to serve."""
    return LoadedMethod(InstantMethod(room), SlotPool(room.max_sequences), NO_TARGET)
