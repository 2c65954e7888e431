"""Biases and masks of a step's rows, as arrays; computed on the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, UInt
from llguidance import LLExecutor

from blockdraft_models.sampling_options import MAX_LOGIT_BIASES
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.scheduling.row import Row

MASK_BITS = 32
"""Tokens per word of a mask, the first in its lowest bit."""


class TokenLimits(NamedTuple):
    """Biases of each row and masks of each choice; too large to be sent where none has any."""

    bias_ids: Int[Array, "rows biased"]  # the vocabulary's size for none
    bias: Float[Array, "rows biased"]
    allowed: UInt[Array, "choices words"]


def no_limits(bucket: Bucket, vocab_size: int) -> TokenLimits:
    """Return no biases and masks that forbid nothing, in NumPy arrays."""
    ids: Any = np.full((bucket.rows, MAX_LOGIT_BIASES), vocab_size, np.int32)
    values: Any = np.zeros(ids.shape, np.float32)
    words = -(-vocab_size // MASK_BITS)
    allowed: Any = np.full((bucket.choices, words), 2**MASK_BITS - 1, "<u4")
    return TokenLimits(ids, values, allowed)


class LimitsPacker:
    """Packs biases and masks; those of grammars are computed on threads, several at a time."""

    def __init__(self, vocab_size: int) -> None:
        """Pack for a target of so many tokens."""
        self._vocab_size = vocab_size
        self._threads = LLExecutor()

    def pack(self, rows: Sequence[Row], bucket: Bucket) -> TokenLimits:
        """Return the biases and masks of `rows` in NumPy arrays, padded to `bucket` with none."""
        limits = no_limits(bucket, self._vocab_size)
        ids, values, allowed = limits
        choosing: list[tuple[Row, int]] = []
        choice = 0
        for index, row in enumerate(rows):
            biases = row.sequence.request.rules.logit_bias
            ids[index, : len(biases)] = list(biases)
            values[index, : len(biases)] = list(biases.values())
            choice += row.choice_count
            if row.chooses:
                choosing.append((row, choice - row.draft_count - 1))
        self._mask_by_grammar(choosing, allowed)
        for row, first in choosing:
            masks = row.sequence.request.masks
            if masks is None:
                continue
            output = row.sequence.tokens[len(row.sequence.request.prompt) :]
            for place, mask in enumerate(masks.along(output, row.drafted), start=first):
                both = allowed[place] & np.frombuffer(
                    mask.to_bytes(allowed[place].nbytes, "little"), "<u4"
                )
                # Something has to be chosen, and the grammar comes first.
                if both.any():
                    allowed[place] = both
        return limits

    def _mask_by_grammar(self, choosing: Sequence[tuple[Row, int]], allowed: Any) -> None:
        """Write the masks of rows that have a grammar; each row comes with its first choice."""
        constrained = [
            (row.sequence.grammar.matcher, first, list(row.drafted))
            for row, first in choosing
            if row.sequence.grammar is not None
        ]
        place = (allowed.ctypes.data, 4 * allowed.shape[1], len(allowed))
        plain = [(matcher, first) for matcher, first, drafted in constrained if not drafted]
        drafts = [entry for entry in constrained if entry[2]]
        if plain:
            self._threads.unsafe_compute_mask_ptr(plain, *place)
        if drafts:
            self._threads.unsafe_compute_mask_ptr_with_draft_token(drafts, *place)
