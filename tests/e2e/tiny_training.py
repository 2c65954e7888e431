"""Trains a real DFlash drafter for a tiny target, in seconds, by showing it the answers.

Not the project's training: just enough gradient descent that a drafter with high acceptance goes
through the whole serving path.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int
from tests.verifier.support import LAYER_IDS

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.attention import EVERYTHING, DenseAttend, Reach
from blockdraft_models.decoder.model import Decoder

LENGTH = 96
STEPS = 150
LEARNING_RATE = 3e-3
BLOCKS_PER_STEP = 32


class OneBlockAttend:
    """Attention of one block over the context before it and over itself."""

    def __init__(self, anchor: Int[Array, ""]) -> None:
        self._anchor = anchor

    def __call__(
        self, q: Array, k: Array, v: Array, cache: Any, reach: Reach = EVERYTHING, /
    ) -> tuple[Array, Any]:
        keys = jnp.concatenate([cache[0], k])
        values = jnp.concatenate([cache[1], v])
        group = q.shape[1] // k.shape[1]
        keys, values = (jnp.repeat(part, group, axis=1) for part in (keys, values))
        scores = jnp.einsum("qhd,khd->hqk", q, keys) * q.shape[-1] ** -0.5
        context = jnp.arange(cache[0].shape[0]) < self._anchor
        visible = jnp.concatenate([context, jnp.ones(k.shape[0], bool)])
        weights = jax.nn.softmax(jnp.where(visible[None, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("hqk,khd->qhd", weights, values), cache


def all_features(
    decoder: Decoder, ids: Int[Array, "texts tokens"], capture: tuple[int, ...]
) -> Float[Array, "texts tokens width"]:
    """Return the features of whole texts."""
    texts = ids.shape[0]
    positions = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32), texts)
    caches = [None] * decoder.config.num_layers
    output = decoder(ids.reshape(-1), positions, caches, DenseAttend(texts, LENGTH), capture)
    return output.captured.reshape(texts, LENGTH, -1)


def train_drafter(
    decoder: Decoder,
    fingerprint: str,
    texts: Sequence[Sequence[int]],
    directory: Path,
    block_size: int,
) -> None:
    """Fit a drafter to `texts` (prompt and answer of the target) and save it in `directory`."""
    config = DFlashConfig.default_for(decoder.config, block_size=block_size)
    config = replace(
        config, target_layer_ids=LAYER_IDS, target_fingerprint=fingerprint, trained=True
    )
    model = DFlash(config, rngs=nnx.Rngs(1))
    ids = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    tokens = jnp.asarray(ids)
    features = all_features(decoder, tokens, config.target_layer_ids)
    graph, state = nnx.split(model)
    optimizer = optax.adam(LEARNING_RATE)

    def block_loss(
        model: DFlash, features: Float[Array, "tokens width"], text: Array, anchor: Array
    ) -> Array:
        context = model.keys_values(model.projection(features), jnp.arange(LENGTH, dtype=jnp.int32))
        block = jnp.full(block_size, config.mask_token_id, jnp.int32).at[0].set(text[anchor])
        positions = anchor + jnp.arange(block_size, dtype=jnp.int32)
        attend = OneBlockAttend(anchor)
        hidden = model.draft(decoder.embedding(block), positions, context, [attend] * len(context))
        logits = decoder.logits(hidden[1:])
        wanted = jax.lax.dynamic_slice(text, (anchor + 1,), (block_size - 1,))
        loss: Array = optax.softmax_cross_entropy_with_integer_labels(logits, wanted).mean()
        return loss

    def loss(state: Any, rows: Array, anchors: Array) -> Array:
        model = nnx.merge(graph, state)
        losses: Array = jax.vmap(lambda row, at: block_loss(model, features[row], tokens[row], at))(
            rows, anchors
        )
        return losses.mean()

    @jax.jit
    def update(state: Any, optimizer_state: Any, rows: Array, anchors: Array) -> Any:
        gradients = jax.grad(loss)(state, rows, anchors)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, state)
        return optax.apply_updates(state, updates), optimizer_state

    rng = np.random.default_rng(0)
    last_anchor = np.array([len(text) - block_size for text in texts])
    optimizer_state = optimizer.init(state)
    # optax divides floats by its integer step count.
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(STEPS):
            rows = rng.integers(0, len(texts), BLOCKS_PER_STEP)
            anchors = rng.integers(1, last_anchor[rows] + 1)
            state, optimizer_state = update(
                state, optimizer_state, jnp.asarray(rows), jnp.asarray(anchors)
            )
    save_drafter(nnx.merge(graph, state), directory)
