"""Rows of a plan packed into the padded arrays of a step; host side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockdraft_models.decoder.sampling import SamplingArrays
from blockdraft_verifier.device.attention.portable import RaggedBatch
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import token_slots
from blockdraft_verifier.device.step import StepInputs
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import Sampling

GREEDY = Sampling()


def pack(
    rows: Sequence[Row], bucket: Bucket, *, page_size: int, num_pages: int, max_pages: int
) -> StepInputs:
    """Return the step inputs of `rows`, padded to `bucket`; NumPy arrays.

    Padding rows are empty, padding tokens write no K/V, padding choices repeat token 0.

    Args:
        rows: At most `bucket.rows` rows of together at most `bucket.tokens` tokens.
        bucket: The shape to pad to.
        page_size: Tokens per page.
        num_pages: Pages of the cache.
        max_pages: Width of the page table.
    """
    token_ids = np.zeros(bucket.tokens, np.int32)
    positions = np.zeros(bucket.tokens, np.int32)
    slots = np.full(bucket.tokens, num_pages * page_size, np.int32)
    row_starts = np.zeros(bucket.rows + 1, np.int32)
    context_lengths = np.zeros(bucket.rows, np.int32)
    page_table = np.zeros((bucket.rows, max_pages), np.int32)
    choice_token = np.zeros(bucket.choices, np.int32)
    choice_row = np.zeros(bucket.choices, np.int32)
    first_choice = np.zeros(bucket.rows, np.int32)
    draft_count = np.zeros(bucket.rows, np.int32)
    start, choice = 0, 0
    for index, row in enumerate(rows):
        stop = start + len(row.token_ids)
        end = row.start + len(row.token_ids)
        pages = row.sequence.pages
        token_ids[start:stop] = row.token_ids
        positions[start:stop] = np.arange(row.start, end)
        slots[start:stop] = token_slots(pages, row.start, end, page_size)
        row_starts[index + 1 :] = stop
        context_lengths[index] = end
        page_table[index, : len(pages)] = pages
        # The newest known token and every drafted one have a choice after them.
        count = row.draft_count + 1
        choice_token[choice : choice + count] = np.arange(stop - count, stop)
        choice_row[choice : choice + count] = index
        first_choice[index] = choice
        draft_count[index] = row.draft_count
        start, choice = stop, choice + count
    requests = [row.sequence.request for row in rows]
    return StepInputs(
        token_ids=_on_host(token_ids),
        positions=_on_host(positions),
        batch=RaggedBatch(
            row_starts=_on_host(row_starts),
            context_lengths=_on_host(context_lengths),
            page_table=_on_host(page_table),
            slots=_on_host(slots),
        ),
        choice_token=_on_host(choice_token),
        choice_row=_on_host(choice_row),
        first_choice=_on_host(first_choice),
        draft_count=_on_host(draft_count),
        sampling=pack_sampling([request.sampling for request in requests], bucket.rows),
        log_probs_wanted=_on_host(
            np.array([any(request.log_probs is not None for request in requests)])
        ),
    )


def reading(batch: RaggedBatch, context: int) -> RaggedBatch:
    """Return a batch of padding as one whose first row holds all tokens and reads a context.

    It reads page 0 only, and still writes no K/V.

    Args:
        batch: Of padding.
        context: Tokens of the row's sequence; 0 for the batch as it is.
    """
    tokens = min(context, len(batch.slots))
    row_starts = np.full_like(batch.row_starts, tokens)
    row_starts[0] = 0
    context_lengths = np.zeros_like(batch.context_lengths)
    context_lengths[0] = context
    return batch._replace(
        row_starts=_on_host(row_starts), context_lengths=_on_host(context_lengths)
    )


def _on_host(array: np.ndarray) -> Any:
    """Return a NumPy array where one of JAX's is declared: a compiled step takes both.

    It moves all of its inputs to its devices at once; one by one takes longer.
    """
    return array


def pack_sampling(options: Sequence[Sampling], size: int) -> SamplingArrays:
    """Return the sampling options of each row, padded with greedy ones to `size`."""
    padded = [*options, *[GREEDY] * (size - len(options))]
    seeds = np.array([option.seed & (2**64 - 1) for option in padded], np.uint64)
    halves = np.stack([seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)], axis=1)
    return SamplingArrays(
        temperature=_on_host(np.array([option.temperature for option in padded], np.float32)),
        top_k=_on_host(np.array([option.top_k for option in padded], np.int32)),
        top_p=_on_host(np.array([option.top_p for option in padded], np.float32)),
        min_p=_on_host(np.array([option.min_p for option in padded], np.float32)),
        seed=_on_host(halves.astype(np.uint32)),
    )
