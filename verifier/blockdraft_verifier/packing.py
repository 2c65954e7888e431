"""Rows of a plan packed into the padded arrays of a step; host side."""

from collections.abc import Sequence as Rows

import jax.numpy as jnp
import numpy as np

from blockdraft_verifier.accept import SamplingArrays
from blockdraft_verifier.attention import RaggedBatch
from blockdraft_verifier.buckets import Bucket
from blockdraft_verifier.paged_cache import token_slots
from blockdraft_verifier.scheduler import Row
from blockdraft_verifier.sequence import Sampling
from blockdraft_verifier.step import StepInputs

GREEDY = Sampling()


def pack(
    rows: Rows[Row], bucket: Bucket, *, page_size: int, num_pages: int, max_pages: int
) -> StepInputs:
    """Return the step inputs of `rows`, padded to `bucket`.

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
        token_ids=jnp.asarray(token_ids),
        positions=jnp.asarray(positions),
        batch=RaggedBatch(
            row_starts=jnp.asarray(row_starts),
            context_lengths=jnp.asarray(context_lengths),
            page_table=jnp.asarray(page_table),
            slots=jnp.asarray(slots),
        ),
        choice_token=jnp.asarray(choice_token),
        choice_row=jnp.asarray(choice_row),
        first_choice=jnp.asarray(first_choice),
        draft_count=jnp.asarray(draft_count),
        sampling=pack_sampling([request.sampling for request in requests], bucket.rows),
        log_probs_wanted=jnp.asarray(
            np.array([any(request.log_probs is not None for request in requests)])
        ),
    )


def pack_sampling(options: Rows[Sampling], size: int) -> SamplingArrays:
    """Return the sampling options of each row, padded with greedy ones to `size`."""
    padded = [*options, *[GREEDY] * (size - len(options))]
    seeds = np.array([option.seed & (2**64 - 1) for option in padded], np.uint64)
    halves = np.stack([seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)], axis=1)
    return SamplingArrays(
        temperature=jnp.asarray(np.array([option.temperature for option in padded], np.float32)),
        top_k=jnp.asarray(np.array([option.top_k for option in padded], np.int32)),
        top_p=jnp.asarray(np.array([option.top_p for option in padded], np.float32)),
        min_p=jnp.asarray(np.array([option.min_p for option in padded], np.float32)),
        seed=jnp.asarray(halves.astype(np.uint32)),
    )
