"""Random sequences, and their draft blocks one at a time in float64 NumPy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array
from tests.drafter.reference import reference_draft

from blockdraft_drafter.checkpoint import published_arrays
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.methods.dflash import draft_blocks


def random_batch(
    rng: np.random.Generator, rows: int, length: int, *, width: int, vocab_size: int
) -> SequenceBatch:
    """Return full rows whose completions start at position 2, with 4 teacher tokens."""
    teacher = (rows, length, 4)
    return SequenceBatch(
        token_ids=rng.integers(0, vocab_size, (rows, length)).astype(np.int32),
        starts=np.full(rows, 2, np.int32),
        ends=np.full(rows, length, np.int32),
        features=rng.standard_normal((rows, length, width)).astype(np.float32),
        teacher_ids=np.argsort(rng.random((rows, length, vocab_size)))[..., :4].astype(np.int32),
        teacher_logits=rng.standard_normal(teacher).astype(np.float32),
    )


@partial(jax.jit, static_argnums=0)
def _drafted(
    graph: nnx.GraphDef[DFlash], state: Any, embedding: Array, batch: SequenceBatch, anchors: Array
) -> Array:
    return draft_blocks(nnx.merge(graph, state), embedding, batch, anchors)


def drafted_hidden(
    model: DFlash, embedding: Array, batch: SequenceBatch, anchors: np.ndarray
) -> np.ndarray:
    """Return what all blocks at once come to, [rows, blocks, slots, hidden]."""
    return np.asarray(_drafted(*nnx.split(model), embedding, batch, jnp.asarray(anchors)))


def reference_hidden(
    model: DFlash, embedding: Array, batch: SequenceBatch, anchors: np.ndarray
) -> np.ndarray:
    """Return the same from the context before each anchor and the anchor's token alone."""
    config, arrays = model.config, published_arrays(model)
    # With this head the logits are the hidden states.
    head = np.eye(config.decoder.hidden_size)
    every = []
    for row, row_anchors in enumerate(anchors.tolist()):
        token_ids, features = np.asarray(batch.token_ids[row]), np.asarray(batch.features[row])
        drafts = [
            reference_draft(
                arrays,
                config,
                np.asarray(embedding),
                head,
                features[:anchor],
                int(token_ids[anchor]),
                config.block_size,
            )[1]
            for anchor in row_anchors
        ]
        every.append(drafts)
    return np.array(every)
