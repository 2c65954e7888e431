"""Logits and features through the paged path against the float64 decoder."""

import functools
import random
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.builders import random_decoder
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import CacheLayout, allocate_cache
from blockdraft_verifier.device.packing import StepInputs, pack
from blockdraft_verifier.device.paged_attention import PagedAttend
from blockdraft_verifier.device.states import StateLayout
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

BUCKET = Bucket(2, 16, 16)
PAGE_SIZE, NUM_PAGES, MAX_PAGES = 4, 24, 10
CAPTURE = (2, 0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def forward(
    graph: nnx.GraphDef[Decoder],
    layout: CacheLayout,
    weights: Any,
    caches: list[Any],
    inputs: StepInputs,
) -> tuple[jax.Array, jax.Array, list[Any]]:
    decoder = nnx.merge(graph, weights)
    attend = PagedAttend(inputs.batch, layout, inputs.state_slots)
    output = decoder(inputs.token_ids, inputs.positions, caches, attend, CAPTURE)
    return decoder.logits(output.hidden), output.captured, output.caches


class Paged:
    """Runs rows of sequences through one compiled shape and keeps the cache."""

    def __init__(self, decoder: Decoder) -> None:
        self.graph, self.weights = nnx.split(decoder)
        stacked, dtype = isinstance(decoder, ScannedDecoder), jnp.dtype("float32")
        states = StateLayout.of(decoder.config, BUCKET.rows, dtype, stacked=stacked)
        sizes = NUM_PAGES, PAGE_SIZE
        self.layout = CacheLayout.of(decoder.config, *sizes, dtype, stacked=stacked, states=states)
        cache = allocate_cache(self.layout)
        # Whatever the cache held before must not matter.
        self.caches: list[Any] = jax.tree.map(
            lambda array: array + 1e6 if array.ndim else array, [*cache.layers, *cache.states]
        )

    def run(self, rows: list[Row]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return logits and features of every token of each row."""
        sizes: Any = {"page_size": PAGE_SIZE, "num_pages": NUM_PAGES, "max_pages": MAX_PAGES}
        inputs = pack(rows, BUCKET, **sizes, states=self.layout.states)
        logits, captured, self.caches = forward(
            self.graph, self.layout, self.weights, self.caches, inputs
        )
        ends = np.cumsum([len(row.token_ids) for row in rows])[:-1]
        total = sum(len(row.token_ids) for row in rows)
        return list(
            zip(
                np.split(np.asarray(logits)[:total], ends),
                np.split(np.asarray(captured)[:total], ends),
                strict=True,
            )
        )


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(actual - expected)) / np.max(np.abs(expected)))


@pytest.mark.parametrize(("kind", "scanned"), [("llama", False), ("qwen3", True)])
def test_chunks_then_decoding_then_drafts(
    kind: Literal["llama", "qwen3"], *, scanned: bool
) -> None:
    decoder = random_decoder(tiny_config(kind), seed=3)
    reference = ReferenceDecoder(decoder.config, params_from_decoder(decoder))
    paged = Paged(ScannedDecoder(decoder) if scanned else decoder)
    for seed in range(2):
        rng = random.Random(seed)
        pages = list(range(NUM_PAGES))
        rng.shuffle(pages)
        sequences, expected = [], []
        for index in range(2):
            tokens = [rng.randrange(decoder.config.vocab_size) for _ in range(34 + 5 * index)]
            sequences.append(TokenSequence(index, GenerationRequest("s", tuple(tokens)), 0.0))
            sequences[-1].pages = pages[index * MAX_PAGES : (index + 1) * MAX_PAGES]
            expected.append((reference.logits(tokens), reference.captured(tokens, CAPTURE)))
        while any(s.committed < len(s.tokens) for s in sequences):
            rows = []
            left = BUCKET.tokens
            for sequence in sequences:
                # Chunks first, then one to four tokens at a time.
                most = 16 if sequence.committed < 20 else 4
                rest = len(sequence.tokens) - sequence.committed
                count = min(rng.randint(1, most), rest, left)
                left -= count
                if count == 0:
                    continue
                known = tuple(sequence.tokens[sequence.committed :][:count])
                # Rejected drafts behind it, which the next row overwrites.
                drafts = min(rng.randint(0, 3), left, 40 - sequence.committed - count)
                left -= drafts
                wrong = tuple(rng.randrange(260) for _ in range(drafts))
                rows.append(Row(sequence, sequence.committed, known + wrong, drafts))
            for row, (logits, captured) in zip(rows, paged.run(rows), strict=True):
                truth = expected[row.sequence.sequence_id]
                start, stop = row.start, row.start + row.known_count
                for actual, wanted in zip((logits, captured), truth, strict=True):
                    assert relative_error(actual[: row.known_count], wanted[start:stop]) < 1e-4
                row.sequence.committed = stop
