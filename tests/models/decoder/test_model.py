"""The decoder against an independent float64 implementation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.builders import LLAMA3_SCALING, random_decoder, run_dense
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.models.tiny import (
    LIKE_GEMMA4,
    LIKE_GEMMA4_SHARED,
    LIKE_GRANITE,
    LIKE_OLMO3,
    Kind,
    tiny_config,
)

from blockdraft_models.decoder.attention import EVERYTHING, DenseAttend, Reach
from blockdraft_models.decoder.layer import RMSNorm
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama"},
    "llama-untied-bias": {"kind": "llama", "tie_word_embeddings": False, "attention_bias": True},
    "llama3-scaling": {"kind": "llama", "head_dim": 16, "rope_scaling": LLAMA3_SCALING},
    "llama-multi-query": {"kind": "llama", "num_kv_heads": 1, "rope_theta": 1e5},
    "qwen3": {"kind": "qwen3"},
    "bare-layers": {"kind": "llama", "windows": (0, 6, 6), "rotated": (True, True, False)},
    "olmo": {**LIKE_OLMO3, "windows": (10, 0, 10), "local_rope_theta": 500.0},
    "granite": LIKE_GRANITE,
    "gemma4": {**LIKE_GEMMA4, "windows": (10, 0, 10)},
    # Two periods, and a layer that fills none.
    "gemma4-periods": {**LIKE_GEMMA4, "num_layers": 7, "windows": (10, 10, 0) * 2 + (10,)},
    "gemma4-shared": {**LIKE_GEMMA4_SHARED, "num_layers": 4},
    "qwen3-tied-wide-head": {"kind": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
}


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(actual - expected)) / np.max(np.abs(expected)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_and_features_equal_the_reference(architecture: str) -> None:
    config = tiny_config(**ARCHITECTURES[architecture])
    token_ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 40))
    for seed in range(2):
        decoder = random_decoder(config, seed)
        logits, output = run_dense(decoder, token_ids, capture=(2, 0))

        reference = ReferenceDecoder(config, params_from_decoder(decoder))
        captured = np.asarray(output.captured).reshape(2, 40, -1)
        for row in range(2):
            assert relative_error(logits[row], reference.logits(token_ids[row])) < 1e-4
            expected = reference.captured(token_ids[row], (2, 0))
            assert relative_error(captured[row], expected) < 1e-4


@pytest.mark.parametrize("capture", [(), (2, 0, 0)])
@pytest.mark.parametrize(
    "architecture",
    ["llama", "qwen3", "bare-layers", "olmo", "gemma4", "gemma4-periods", "gemma4-shared"],
)
def test_scanned_layers_equal_unrolled_ones(architecture: str, capture: tuple[int, ...]) -> None:
    decoder = random_decoder(tiny_config(**ARCHITECTURES[architecture]))
    token_ids = np.random.default_rng(0).integers(0, decoder.config.vocab_size, (2, 20))
    expected, unrolled = run_dense(decoder, token_ids, capture)
    layer = decoder.layers[0]

    logits, scanned = run_dense(ScannedDecoder(decoder), token_ids, capture)

    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scanned.captured, unrolled.captured, rtol=1e-5, atol=1e-5)
    # Nobody holds the weights twice.
    assert layer.attention.query.weight.get_raw_value().is_deleted()


def test_caches_pass_through_attend_layer_by_layer() -> None:
    decoder = random_decoder(tiny_config())
    dense = DenseAttend(1, 4)

    def attend(
        q: jax.Array, k: jax.Array, v: jax.Array, cache: int, reach: Reach = EVERYTHING, /
    ) -> tuple[jax.Array, int]:
        return dense(q, k, v, None)[0], cache + 10

    def run(tokens: jax.Array) -> jax.Array:
        output = decoder(tokens, tokens, [0, 1, 2], attend)
        assert output.caches == [10, 11, 12]
        return output.captured

    assert jax.eval_shape(run, jnp.arange(4, dtype=jnp.int32)).shape == (4, 0)


@pytest.mark.parametrize(
    ("caches", "capture", "batch", "message"),
    [
        (2, (), 1, "expected 3 caches, got 2"),
        (3, (3,), 1, "cannot capture layers"),
        (3, (), 2, "expected 2 x 4 tokens, got 4"),
    ],
)
def test_wrong_caches_and_captures_are_refused(
    caches: int, capture: tuple[int, ...], batch: int, message: str
) -> None:
    decoder = random_decoder(tiny_config())

    def run(tokens: jax.Array) -> jax.Array:
        attend = DenseAttend(batch, 4)
        return decoder(tokens, tokens, [None] * caches, attend, capture).captured

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run, jnp.arange(4, dtype=jnp.int32))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_bfloat16_runs_under_strict_promotion_and_jit(kind: Kind) -> None:
    config = tiny_config(kind, attention_bias=True)
    decoder = Decoder(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    tokens = np.arange(8)[None]
    logits, output = run_dense(decoder, tokens, (1,))
    assert logits.dtype == jnp.float32
    assert output.captured.dtype == jnp.bfloat16
    reference = ReferenceDecoder(config, params_from_decoder(decoder)).logits(range(8))
    assert relative_error(logits[0], reference) < 0.05


@pytest.mark.parametrize("wide", [False, True])
def test_a_wide_norm_is_rounded_once(*, wide: bool) -> None:
    rng, norm = np.random.default_rng(0), RMSNorm(32, 1e-6, wide=wide, dtype=jnp.bfloat16)
    norm.scale[...] = jnp.asarray(rng.normal(1, 0.3, 32), jnp.bfloat16)
    x = jnp.asarray(rng.standard_normal((64, 32)), jnp.bfloat16)
    exact = np.asarray(x).astype(np.float64)
    exact /= np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + 1e-6)
    exact *= np.asarray(norm.scale[...]).astype(np.float64)
    y = norm(x)
    assert y.dtype == jnp.bfloat16
    assert np.array_equal(y, exact.astype(jnp.bfloat16)) == wide


def test_every_weight_names_its_axes() -> None:
    decoder = Decoder(tiny_config("qwen3", attention_bias=True), rngs=None)
    for path, variable in nnx.to_flat_state(nnx.state(decoder)):
        assert len(variable.get_metadata()["out_sharding"]) == variable[...].ndim, path
