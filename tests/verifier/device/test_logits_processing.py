"""The logits that a step chooses of, row by row and along drafts, against float64."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.verifier.logits_reference import VOCAB, random_case, reference

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.logits_processing import process_logits
from blockdraft_verifier.device.packing import pack
from blockdraft_verifier.device.token_limits import LimitsPacker
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import TokenSequence

PAGE_SIZE, MAX_PAGES, MAX_DRAFTS = 16, 40, 7
BUCKET = Bucket(4, 32, 32)
process = jax.jit(process_logits, static_argnames="max_drafts")


# Tokens are counted 256 at a time.
@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256, 257, 511, 512, 513, 600])
def test_rows_of_every_length(length: int) -> None:
    rng, numbers = random.Random(length), np.random.default_rng(length)
    free = list(range(4 * MAX_PAGES))
    rng.shuffle(free)
    page_tokens = numbers.integers(0, VOCAB, (len(free), PAGE_SIZE)).astype(np.int32)
    rows, cases = [], []
    for index, count in enumerate((length, rng.randint(1, 600), length + 1)):
        asked, request = random_case(10 * length + index)
        sequence = TokenSequence(index, request, 0.0)
        sequence.tokens = rng.choices(range(30), k=count)
        # At least one of each, as far as there is room.
        prompt = rng.randint(1, max(1, count - 1))
        object.__setattr__(request, "prompt", tuple(sequence.tokens[:prompt]))
        drafted = tuple(rng.choices(range(30), k=rng.randint(0, MAX_DRAFTS)))
        sequence.pages = [free.pop() for _ in range(MAX_PAGES)]
        known = [*sequence.tokens, *drafted]
        for position, token in enumerate(known):
            page_tokens[sequence.pages[position // PAGE_SIZE], position % PAGE_SIZE] = token
        row = Row(sequence, count - 1, (sequence.anchor, *drafted), len(drafted))
        rows.append(row)
        cases += [
            (asked, known[:prompt], known[prompt : count + offset])
            for offset in range(len(drafted) + 1)
        ]
    inputs = pack(
        rows, BUCKET, page_size=PAGE_SIZE, num_pages=len(page_tokens), max_pages=MAX_PAGES
    )
    logits = numbers.normal(0, 4, (BUCKET.choices, VOCAB)).astype(np.float32)
    found = np.asarray(
        process(
            jnp.asarray(logits),
            jax.tree.map(jnp.asarray, inputs),
            LimitsPacker(VOCAB).pack(rows, BUCKET),
            jnp.asarray(page_tokens),
            MAX_DRAFTS,
        )
    )
    for row_of, before, line in zip(cases, logits, found, strict=False):
        np.testing.assert_allclose(line, reference(before, *row_of), rtol=1e-5, atol=1e-5)
    # Padding choices belong to row 0, whose masks are for its own choices only.
    assert not np.isnan(found).any()
