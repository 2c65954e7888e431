"""A drafter copied from its target starts as the target."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config

from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.attention import DenseAttend, rotary_tables
from blockdraft_models.decoder.layer import DecoderLayer
from blockdraft_models.decoder.model import Decoder
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.initialize import from_target

LENGTH, HIDDEN = 12, 32
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "num_layers": 3,
    "bos_token_id": 1,
    "eos_token_ids": (2,),
}
Kind = Literal["llama", "qwen3"]


@dataclass(frozen=True, slots=True)
class Recording(DenseAttend):
    """Keeps a layer's keys and values as its cache."""

    def __call__(self, q: Array, k: Array, v: Array, cache: Any, /) -> tuple[Array, Any]:
        attended, _ = DenseAttend.__call__(self, q, k, v, None)
        return attended, (k, v)


@partial(jax.jit, static_argnums=0)
def run_target(graph: nnx.GraphDef[Decoder], state: Any, token_ids: Array) -> Any:
    """Return the outputs of layers 0 and 1, and every layer's keys and values."""
    positions = jnp.arange(LENGTH, dtype=jnp.int32)
    decoder = nnx.merge(graph, state)
    output = decoder(token_ids, positions, [None] * 3, Recording(1, LENGTH), (0, 1))
    return output.captured, output.caches


@partial(jax.jit, static_argnums=0)
def project(graph: nnx.GraphDef[DFlash], state: Any, features: Array) -> Any:
    model = nnx.merge(graph, state)
    return model.keys_values(model.projection(features), jnp.arange(LENGTH, dtype=jnp.int32))


@partial(jax.jit, static_argnums=0)
def run_layer(graph: nnx.GraphDef[DecoderLayer], state: Any, x: Array) -> Array:
    layer = nnx.merge(graph, state)
    rotary = rotary_tables(layer.attention.config, jnp.arange(LENGTH, dtype=jnp.int32))
    out: Array = layer(x, rotary, None, DenseAttend(1, LENGTH))[0]
    return out


def make(kind: Kind) -> tuple[Decoder, DFlash]:
    """Return a target whose norms are random, and its first and last layer as a drafter."""
    decoder = random_decoder(tiny_config(kind, **SHAPE))
    config = DFlashConfig.default_for(decoder.config, block_size=4)
    config = replace(config, target_layer_ids=(0, 1))
    return decoder, from_target(config, decoder, (0, 2), seed=0)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_contexts_arrive_as_the_targets_own_keys_and_values(kind: Kind) -> None:
    decoder, model = make(kind)
    # An exact pass-through of the last captured layer, whose output the copied layer 2 reads.
    model.fc.weight[...] = jnp.eye(HIDDEN, 2 * HIDDEN, HIDDEN)
    token_ids = jnp.asarray(np.random.default_rng(0).integers(0, 64, LENGTH), jnp.int32)
    features, caches = run_target(*nnx.split(decoder), token_ids)
    keys, values = project(*nnx.split(model), features)[1]
    their_keys, their_values = caches[2]
    np.testing.assert_allclose(values, their_values, rtol=1e-4, atol=1e-5)
    if kind == "qwen3":
        np.testing.assert_allclose(keys, their_keys, rtol=1e-4, atol=1e-5)
        return
    # The target's keys have no norm, the drafter's have: the same directions, the usual size.
    sizes, their_sizes = (
        np.linalg.norm(part, axis=-1, keepdims=True) for part in (keys, their_keys)
    )
    np.testing.assert_allclose(keys / sizes, their_keys / their_sizes, rtol=1e-3, atol=1e-4)
    assert 0.5 < (sizes / their_sizes).mean() < 2


def test_a_copied_layer_computes_what_its_original_does() -> None:
    decoder, model = make("qwen3")
    x = jax.random.normal(jax.random.key(0), (LENGTH, HIDDEN))
    for ours, theirs in ((0, 0), (1, 2)):
        copied = run_layer(*nnx.split(model.layers[ours]), x)
        original = run_layer(*nnx.split(decoder.layers[theirs]), x)
        np.testing.assert_allclose(copied, original, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.norm.scale[...], decoder.norm.scale[...])


def test_fc_passes_the_last_feature_through_and_hears_the_others() -> None:
    _, model = make("llama")
    weight = np.asarray(model.fc.weight[...])
    noise = weight - np.eye(HIDDEN, 2 * HIDDEN, HIDDEN)
    assert 0.05 < noise.std() * (2 * HIDDEN) ** 0.5 < 0.2
    assert np.abs(noise[:, :HIDDEN]).min() > 0


def test_the_target_stays_as_it_is() -> None:
    decoder = random_decoder(tiny_config("qwen3", **SHAPE))
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(decoder)))
    config = DFlashConfig.default_for(decoder.config, block_size=4)
    from_target(config, decoder, (0, 2), seed=0)
    after = nnx.to_pure_dict(nnx.state(decoder))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_layers_of_another_shape_are_refused() -> None:
    decoder = random_decoder(tiny_config(**SHAPE))
    config = DFlashConfig.default_for(decoder.config, block_size=4)
    wide = replace(config, decoder=replace(config.decoder, intermediate_size=48))
    with pytest.raises(TrainingError, match=r"mlp\..*only layers of the target's shape"):
        from_target(wide, decoder, (0, 2), seed=0)
