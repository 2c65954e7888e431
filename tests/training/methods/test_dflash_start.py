"""A drafter copied from its target starts as the target; one that goes on keeps what fits."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array
from tests.drafter.builders import drafter_config, random_drafter
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config

from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_models.decoder.attention import EVERYTHING, DenseAttend, Reach
from blockdraft_models.decoder.decoder_layer import DecoderLayer
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.rope import rotary_tables
from blockdraft_training.errors import TrainingError
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.settings import DFlashSettings

LENGTH, HIDDEN = 12, 32
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "num_layers": 3,
    "bos_token_id": 1,
    "eos_token_ids": (2,),
}
Kind = Literal["llama", "qwen3"]
OLD, NEW = np.array([1, 4, 9, 20]), np.array([0, 4, 20, 33, 40])
RECIPE = DFlashRecipe(DFlashSettings(corpus=(Path("none"),), output=Path("none")))


@dataclass(frozen=True, slots=True)
class Remembering(DenseAttend):
    """Keeps a layer's keys and values as its cache."""

    def __call__(
        self, q: Array, k: Array, v: Array, cache: Any, reach: Reach = EVERYTHING, /
    ) -> tuple[Array, Any]:
        attended, _ = DenseAttend.__call__(self, q, k, v, None)
        return attended, (k, v)


@partial(jax.jit, static_argnums=0)
def run_target(graph: nnx.GraphDef[Decoder], state: Any, token_ids: Array) -> Any:
    """Return the outputs of layers 0 and 1, and every layer's keys and values."""
    positions = jnp.arange(LENGTH, dtype=jnp.int32)
    decoder = nnx.merge(graph, state)
    output = decoder(token_ids, positions, [None] * 3, Remembering(1, LENGTH), (0, 1))
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
    return decoder, RECIPE.from_target(replace(config, target_layer_ids=(0, 1)), decoder)


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


def test_the_target_stays_as_it_is_and_must_have_the_shape() -> None:
    decoder = random_decoder(tiny_config("qwen3", **SHAPE))
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(decoder)))
    config = DFlashConfig.default_for(decoder.config, block_size=4)
    RECIPE.from_target(config, decoder)
    after = nnx.to_pure_dict(nnx.state(decoder))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    wide = replace(config, decoder=replace(config.decoder, intermediate_size=48))
    with pytest.raises(TrainingError, match=r"mlp\..*only layers of the target's shape"):
        RECIPE.from_target(wide, decoder)


def test_what_training_knows_nothing_of_is_refused() -> None:
    newer = random_drafter(drafter_config(conv_group_size=8))
    with pytest.raises(TrainingError, match="DFlash 2, which cannot be trained"):
        RECIPE.from_drafter(newer.model.config, newer, None)
    own = replace(random_drafter(drafter_config()), head=np.ones((3, 4), np.float32))
    with pytest.raises(TrainingError, match="an embedding or a head of its own"):
        RECIPE.from_drafter(own.model.config, own, None)


def test_a_markov_head_moves_to_another_vocabulary() -> None:
    config = drafter_config(markov_rank=3, draft_vocab_size=len(OLD))
    earlier = replace(random_drafter(config), draft_ids=OLD)
    model = RECIPE.from_drafter(replace(config, draft_vocab_size=len(NEW)), earlier, NEW)
    old, new = earlier.model.markov_head, model.markov_head
    assert old is not None
    assert new is not None
    np.testing.assert_array_equal(new.markov_w1[...], old.markov_w1[...])
    moved = np.asarray(new.markov_w2[...])
    np.testing.assert_array_equal(moved[[1, 2]], np.asarray(old.markov_w2[...])[[1, 3]])
    assert not moved[[0, 3, 4]].any()
    np.testing.assert_array_equal(model.fc.weight[...], earlier.model.fc.weight[...])


@pytest.mark.parametrize(("had", "wanted"), [(0, 3), (2, 3), (3, 0)])
def test_a_head_of_another_rank_starts_anew(had: int, wanted: int) -> None:
    earlier = random_drafter(drafter_config(markov_rank=had))
    model = RECIPE.from_drafter(drafter_config(markov_rank=wanted), earlier, None)
    assert (model.markov_head is not None) == bool(wanted)
    if model.markov_head is not None:
        assert not np.asarray(model.markov_head.markov_w2[...]).any()
    np.testing.assert_array_equal(model.norm.scale[...], earlier.model.norm.scale[...])
