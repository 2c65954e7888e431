"""Rows of a plan packed into the padded arrays of a step; host side."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.sampling import SamplingArrays, pack_sampling
from blockdraft_models.sampling_options import NO_RULES
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.portable_attention import RaggedBatch
from blockdraft_verifier.device.states import StateLayout
from blockdraft_verifier.scheduling.row import Row


class Penalties(NamedTuple):
    """The penalties of each row; repetition alone looks at the prompt."""

    prompt_tokens: Int[Array, " rows"]  # length of the prompt
    repetition: Float[Array, " rows"]  # 1 for none
    frequency: Float[Array, " rows"]  # 0 for none
    presence: Float[Array, " rows"]  # 0 for none


class CanvasRows(NamedTuple):
    """Of each row that is a canvas, and was noise at first."""

    slot: Int[Array, " rows"]  # where its signal is
    follows: Bool[Array, " rows"]  # whether it has one, of the step before
    temperature: Float[Array, " rows"]  # 1 for other rows


class StepInputs(NamedTuple):
    """Everything that every step needs besides weights and cache."""

    token_ids: Int[Array, " tokens"]  # tokens of all rows one after another, then padding
    positions: Int[Array, " tokens"]  # position of each token in its sequence
    batch: RaggedBatch  # where the tokens belong
    # Flat index of each token after which the target's choice is wanted.
    choice_token: Int[Array, " choices"]
    choice_row: Int[Array, " choices"]  # the row of each choice
    first_choice: Int[Array, " rows"]  # index of each row's first choice
    draft_count: Int[Array, " rows"]  # drafted tokens at the end of each row
    sampling: SamplingArrays  # sampling options of each row
    log_probs_wanted: Bool[Array, "1"]  # whether any row wants log probabilities
    # The token of each choice whose log probability is wanted; -1 for the chosen one.
    scored_token: Int[Array, " choices"]
    penalties: Penalties  # penalties of each row
    rules_wanted: Bool[Array, "3"]  # whether any row has biases, masks, penalties
    # Where each row's state is, Int[Array, " rows"], and slots to copy before, Int[Array, "n 2"];
    # None for a target without states.
    state_slots: Array | None = None
    state_copies: Array | None = None
    # Number of each token's adapter, Int[Array, " tokens"]; None for a target without adapters.
    adapters: Array | None = None
    canvases: CanvasRows | None = None  # None for a target whose canvases are no noise


def pack(
    rows: Sequence[Row],
    bucket: Bucket,
    *,
    page_size: int,
    num_pages: int,
    max_pages: int,
    states: StateLayout | None = None,
    has_adapters: bool = False,
    has_noise: bool = False,
) -> StepInputs:
    """Return the step inputs of `rows`, padded to `bucket`, which holds them.

    Padding rows are empty, padding tokens write no K/V, padding choices repeat token 0. All are
    NumPy arrays. `max_pages` is the width of the page table, `num_pages` the size of the cache.
    """
    token_ids, positions = _zeros(bucket.tokens), _zeros(bucket.tokens)
    slots = _zeros(bucket.tokens) + np.int32(num_pages * page_size)
    row_starts, context_lengths = _zeros(bucket.rows + 1), _zeros(bucket.rows)
    page_table = _zeros(bucket.rows, max_pages)
    choice_token, choice_row = _zeros(bucket.choices), _zeros(bucket.choices)
    first_choice, draft_count = _zeros(bucket.rows), _zeros(bucket.rows)
    scored_token = _zeros(bucket.choices) - np.int32(1)

    count = len(rows)
    lengths = _numbers(len(row.token_ids) for row in rows)
    starts = _numbers(row.start for row in rows)
    stops, total = np.cumsum(lengths), int(lengths.sum())
    token_ids[:total] = list(itertools.chain.from_iterable(row.token_ids for row in rows))
    positions[:total] = _runs(starts, lengths)
    row_starts[1 : count + 1], row_starts[count + 1 :] = stops, total
    context_lengths[:count] = starts + lengths
    for index, row in enumerate(rows):
        page_table[index, : len(row.sequence.pages)] = row.sequence.pages
    page, offset = np.divmod(positions[:total], page_size)
    slots[:total] = page_table[np.repeat(np.arange(count), lengths), page] * page_size + offset

    # The newest known token and every drafted one have a choice after them.
    draft_count[:count] = [row.draft_count for row in rows]
    counts = _numbers(row.choice_count for row in rows)
    choice_stops, choices = np.cumsum(counts), int(counts.sum())
    choice_token[:choices] = _runs(stops - counts, counts)
    choice_row[:choices] = np.repeat(np.arange(count), counts)
    first_choice[:count] = choice_stops - draft_count[:count] - 1
    for row, stop in zip(rows, choice_stops, strict=True):
        if row.scored:
            first, scored = stop - row.choice_count, row.scored_tokens
            scored_token[first : first + len(scored)] = scored
    requests = [row.sequence.request for row in rows]
    wants_log_probs = any(row.scored for row in rows) or any(
        r.log_probs is not None for r in requests
    )
    log_probs_wanted: Any = np.array([wants_log_probs])
    rules_wanted: Any = np.array(
        [
            any(request.rules.logit_bias for request in requests),
            any(row.masks_tokens for row in rows),
            any(request.rules.penalizes for request in requests),
        ]
    )
    state_slots, state_copies = None, None
    if states is not None:
        state_slots, state_copies = _packed_states(rows, bucket.rows, states.most_copies)
    adapters: Any = None
    if has_adapters:
        adapters = _zeros(bucket.tokens)
        adapters[:total] = np.repeat(_numbers(r.adapter for r in requests), lengths)
    joint, canvases = _packed_canvases(rows, bucket.rows) if has_noise else (None, None)
    return StepInputs(
        token_ids,
        positions,
        RaggedBatch(row_starts, context_lengths, page_table, slots, joint),
        choice_token,
        choice_row,
        first_choice,
        draft_count,
        pack_sampling([row.sampling for row in rows], bucket.rows),
        log_probs_wanted,
        scored_token,
        _pack_penalties(rows, bucket.rows),
        rules_wanted,
        state_slots,
        state_copies,
        adapters,
        canvases,
    )


def _packed_canvases(rows: Sequence[Row], row_count: int) -> tuple[Any, CanvasRows]:
    """Return whether each row is a canvas, and the inputs of those."""
    joint: Any = np.zeros(row_count, bool)
    slot, follows, temperature = _zeros(row_count), joint.copy(), joint + np.float32(1)
    for index, row in enumerate(rows):
        canvas = row.sequence.canvas
        if canvas is not None and row.canvas_count:
            joint[index], slot[index] = True, row.sequence.state_slot
            follows[index], temperature[index] = canvas.step_count > 0, canvas.temperature
    return joint, CanvasRows(slot, follows, temperature)


def _packed_states(rows: Sequence[Row], row_count: int, most_copies: int) -> tuple[Any, Any]:
    slots, copies = _zeros(row_count), _zeros(most_copies, 2) - np.int32(1)
    slots[: len(rows)] = [row.sequence.state_slot for row in rows]
    for index, copy in enumerate(copy for row in rows for copy in row.state_copies):
        copies[index] = copy
    return slots, copies


def _pack_penalties(rows: Sequence[Row], size: int) -> Penalties:
    requests = [row.sequence.request for row in rows]
    rules = [*(request.rules for request in requests), *[NO_RULES] * (size - len(rows))]

    def column(name: str) -> Any:
        return np.array([getattr(row_rules, name) for row_rules in rules], np.float32)

    lengths = _zeros(size)
    lengths[: len(rows)] = [len(request.prompt) for request in requests]
    return Penalties(
        lengths, *map(column, ("repetition_penalty", "frequency_penalty", "presence_penalty"))
    )


def _zeros(*shape: int) -> Any:
    """Return an array of NumPy where one of JAX's is declared."""
    return np.zeros(shape, np.int32)


def _numbers(values: Iterable[int]) -> Any:
    return np.fromiter(values, np.int32)


def _runs(firsts: Any, lengths: Any) -> Any:
    """Return the numbers of each run, `lengths` of them from `firsts` on, run after run."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(firsts - before, lengths)


def reading(batch: RaggedBatch, context: int) -> RaggedBatch:
    """Return a batch of padding as one whose first row holds all tokens and reads a context.

    It reads page 0 only, and still writes no K/V. A context of 0 leaves the batch as it is.
    """
    row_starts, context_lengths = _zeros(len(batch.row_starts)), _zeros(len(batch.context_lengths))
    row_starts[1:] = min(context, len(batch.slots))
    context_lengths[0] = context
    return batch._replace(row_starts=row_starts, context_lengths=context_lengths)
