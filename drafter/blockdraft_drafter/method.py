"""The interface of draft methods, behind which DFlash and EAGLE-3 sit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from blockdraft_models.sampling_options import GREEDY, Sampling

if TYPE_CHECKING:
    # A method need not compute with JAX, so knowing the interface does not load it.
    from blockdraft_models.decoder.feature_projection import FeatureProjection


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """The fixed facts of a loaded draft method."""

    name: str
    block_size: int  # tokens per block, the anchor included
    # Target layers whose outputs, concatenated in this order, are a feature.
    target_layer_ids: tuple[int, ...]
    feature_width: int  # elements of one feature as `step` takes it
    feature_dtype: np.dtype[Any]
    vocab_size: int
    max_sequences: int  # number of slots of the draft KV cache
    max_context_tokens: int  # most committed positions per slot
    max_feature_rows: int  # most feature rows per sequence and step
    fingerprint: str  # identity of weights and configuration, 16 hexadecimal digits
    trained: bool
    reads_tokens: bool = False  # whether a row must bring its tokens beside its features
    # Projection of features before `step`, its arrays on the host; None if `step` takes the
    # target's outputs as they are.
    projection: "FeatureProjection | None" = field(default=None, compare=False)


class Recycled(NamedTuple):
    """The target's choices at positions after drafted tokens that were rejected.

    Arrays of equal length.
    """

    positions: Sequence[int] = ()
    after: Sequence[int] = ()  # the drafted token before each
    token_ids: Sequence[int] = ()


NOTHING_RECYCLED = Recycled()


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One sequence's part of a step, already validated."""

    slot: int  # its slot of the draft KV cache; different for every row of a step
    context_length: int  # committed positions in the slot before the step
    features: NDArray[Any]  # features of the newly committed positions, [rows, feature_width]
    anchor_token_id: int  # the newest token of the sequence, at position context_length + rows
    draft_length: int  # tokens to draft, 0 to block_size - 1; 0 only appends
    # Tokens at the positions of the features; may be empty for a method that does not read them.
    token_ids: tuple[int, ...] = ()
    sampling: Sampling = GREEDY  # how the target will choose
    # The draft may end where the chance that all of it is right falls below this.
    least_chance: float = 0.0
    recycled: Recycled = NOTHING_RECYCLED  # since the last draft


DraftTokens = tuple[int, ...]
"""The drafted tokens of one row, each after the one before."""


@runtime_checkable
class DraftMethod(Protocol):
    """Keeps the draft KV cache on a device and drafts from it.

    Not thread-safe: every method is called on the event loop, but for `warm_up`.
    """

    @property
    def spec(self) -> MethodSpec:
        """The fixed facts."""

    @property
    def step_seconds(self) -> Sequence[float]:
        """Measured seconds of drafting whole blocks for 1, 2, 4, ... sequences; empty if cold."""

    @property
    def shortest_step_seconds(self) -> Sequence[float]:
        """Measured seconds of drafting one token each; empty if whole blocks take as long."""

    def warm_up(self) -> None:
        """Compile every shape that `step` can meet and measure the steps."""

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        """Append each row's features to its slot, then draft for the rows that ask for it.

        The rows are at most max_sequences. There is one draft per row, in order, empty for a row
        that only appends. Raises DraftCacheLostError if the step failed; the contents of all slots
        are gone, and the method can be used again.
        """


class DraftCacheLostError(RuntimeError):
    """A device step failed, and the contents of the draft KV cache are lost."""


class MethodLostError(DraftCacheLostError):
    """A device step failed, and there is no memory for a new draft KV cache: nothing works now."""


def all_finite(values: NDArray[Any]) -> bool:
    """Return whether all elements are finite numbers."""
    if values.dtype != ml_dtypes.bfloat16:
        return bool(np.isfinite(values).all())
    # As integers, which NumPy compares many times as fast: all bits of the exponent are set from
    # 0x7f80 on, and with the bit of the sign before them from 0xff80 on.
    bits = values.view(np.uint16)
    largest, largest_positive = bits.max(initial=0), bits.view(np.int16).max(initial=0)
    return bool(largest < 0xFF80 and largest_positive < 0x7F80)
