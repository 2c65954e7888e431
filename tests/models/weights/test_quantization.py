"""Int8 weights: rounding row by row, loading, and the decoder that multiplies with them."""

import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder, run_dense, write_gguf
from tests.models.quantized import dequantized_params, int8_decoder
from tests.models.reference_decoder import ReferenceDecoder
from tests.models.tiny import Kind, tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.linear import Linear
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.quantization import quantize

F32 = np.finfo(np.float32)


def near_ties(rng: np.random.Generator) -> np.ndarray:
    """Return rows whose elements are halves of a scale, or the next numbers beside them."""
    scale = rng.uniform(1e-3, 1e3, (40, 1)).astype(np.float32)
    halves = scale * (np.arange(-126, 126, dtype=np.float32) + np.float32(0.5))
    beside = np.nextafter(halves, rng.choice([-F32.max, F32.max], halves.shape))
    ends = scale * np.float32(127)
    return np.concatenate([ends, halves, beside, -ends], axis=1)


SMALLEST = float(F32.smallest_subnormal)
EXTREMES = [
    [0.0, 0.0, -0.0],
    [0.0, -1.0, 0.0],
    [F32.max, -F32.max, 1.0],
    [F32.tiny, -F32.tiny, 0.0],
    [F32.tiny / 2, -F32.tiny / 3, F32.tiny / 254],
    [127 * F32.tiny, 63.5 * F32.tiny, -0.5 * F32.tiny],
    [SMALLEST, 0.0, -SMALLEST],
    [60 * SMALLEST, 190 * SMALLEST, -95 * SMALLEST],
    [1.0, 0.5 / 127, 1.5 / 127],
    [-5.0, 3.0, 5.0],
]
ROWS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda rng: rng.standard_normal((37, 61)) * 10.0 ** rng.uniform(-6, 6, (37, 1)),
    "heavy-tailed": lambda rng: rng.standard_cauchy((20, 100)),
    "any magnitude": lambda rng: (
        rng.choice([-1.0, 1.0], (64, 16)) * 10.0 ** rng.uniform(-45, 38, (64, 16))
    ),
    "one magnitude a row": lambda rng: (
        rng.standard_normal((84, 16)) * 10.0 ** np.arange(-46.0, 38.0)[:, None]
    ),
    "near ties": near_ties,
    "extremes": lambda _: np.array(EXTREMES),
    # More rows than are divided at a time.
    "one column": lambda rng: rng.standard_normal((70_000, 1)),
    "long rows": lambda rng: rng.standard_normal((2, 70_000)),
}


@pytest.mark.parametrize("rows", ROWS)
def test_no_element_changes_by_more_than_half_a_scale(rows: str) -> None:
    weight = ROWS[rows](np.random.default_rng(0)).astype(np.float32)
    values, scale = quantize(weight)
    wide, scale64 = weight.astype(np.float64), scale.astype(np.float64)
    # Exactly: these products have few enough digits for float64.
    error = np.abs(wide - values * scale64[:, None])
    assert (error <= scale64[:, None] / 2).all()
    assert np.abs(values.astype(int)).max() <= 127
    largest = np.abs(wide).max(axis=1)
    np.testing.assert_array_equal(scale == 0, largest == 0)
    assert not values[largest == 0].any()
    wide_enough = largest / 127 >= F32.tiny
    np.testing.assert_allclose(scale64[wide_enough], largest[wide_enough] / 127, rtol=1e-7)
    np.testing.assert_array_equal(np.abs(values[wide_enough].astype(int)).max(axis=1), 127)
    # Where subnormal numbers are flushed to zero, no scale is.
    assert (scale[largest > 0] >= F32.tiny).all()


def test_values_are_the_nearest_whole_numbers() -> None:
    weight = near_ties(np.random.default_rng(1))[:6].astype(np.float32)
    values, scale = quantize(weight)
    for row, divisor, rounded in zip(weight, scale, values, strict=True):
        for element, value in zip(row.tolist(), rounded.tolist(), strict=True):
            # Python rounds fractions exactly, and halves to the even one.
            assert value == round(Fraction(element) / Fraction(float(divisor)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weight = np.ones((3, 4), np.float32)
    weight[1, 2] = bad
    with pytest.raises(ValueError, match="infinite or not a number"):
        quantize(weight)


@pytest.mark.parametrize(("kind", "scanned"), [("llama", False), ("qwen3", True)])
def test_logits_are_those_of_the_dequantized_weights(
    kind: Kind, tmp_path: Path, *, scanned: bool
) -> None:
    config = tiny_config(kind, attention_bias=kind == "llama")
    original = random_decoder(config)
    decoder = int8_decoder(original, tmp_path)
    params = dequantized_params(decoder)
    token_ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 20))
    rounded_away = run_dense(original, token_ids)[0]

    logits, output = run_dense(
        ScannedDecoder(decoder) if scanned else decoder, token_ids, capture=(2, 0)
    )

    reference = ReferenceDecoder(config, params)
    captured = np.asarray(output.captured).reshape(2, 20, -1)
    for row in range(2):
        expected = reference.logits(token_ids[row])
        np.testing.assert_allclose(logits[row], expected, atol=1e-4 * np.abs(expected).max())
        features = reference.captured(token_ids[row], (2, 0))
        np.testing.assert_allclose(captured[row], features, atol=1e-4 * np.abs(features).max())
    # It is not the original that was loaded.
    assert np.abs(logits - rounded_away).max() > 1e-3 * np.abs(rounded_away).max()


def test_matrices_of_layers_and_the_head_are_int8_and_nothing_else(tmp_path: Path) -> None:
    original = random_decoder(tiny_config("qwen3", attention_bias=True))
    write_hf_checkpoint(original, tmp_path / "hf")
    write_gguf(original, tmp_path / "model.gguf")
    weights = dict(nnx.to_flat_state(nnx.state(original)))
    for path in (tmp_path / "hf", tmp_path / "model.gguf"):
        heard: list[tuple[int, int]] = []

        def hear(done: int, total: int, heard: list[tuple[int, int]] = heard) -> None:
            heard.append((done, total))

        decoder, checkpoint = load_decoder(path, dtype=jnp.float32, weights="int8", progress=hear)
        assert checkpoint.fingerprint == load_decoder(path, dtype=jnp.float32)[1].fingerprint
        state = dict(nnx.to_flat_state(nnx.state(decoder)))
        held = sum(variable.get_raw_value().nbytes for variable in state.values())
        assert heard[-1] == (held, held)
        for key, variable in weights.items():
            whole, loaded = np.asarray(variable[...]), state.pop(key)
            if key[0] not in ("layers", "head") or whole.ndim != 2:
                np.testing.assert_array_equal(loaded[...], whole)
                continue
            scale = state.pop((*key[:-1], "scale"))
            expected = quantize(whole)
            np.testing.assert_array_equal(loaded[...], expected.values)
            np.testing.assert_array_equal(scale[...], expected.scale)
            assert (loaded[...].dtype, scale[...].dtype) == (jnp.int8, jnp.float32)
            axes = variable.get_metadata()["out_sharding"]
            assert loaded.get_metadata()["out_sharding"] == axes
            assert scale.get_metadata()["out_sharding"] == axes[:1]
        assert not state


def test_loading_never_holds_the_whole_model_in_float(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=256, intermediate_size=2048, num_layers=2, head_dim=32)
    decoder = random_decoder(config)
    write_hf_checkpoint(decoder, tmp_path)
    whole = sum(weight.nbytes for weight in jax.tree.leaves(nnx.state(decoder)))
    del decoder
    tracemalloc.start()
    try:
        loaded, _ = load_decoder(tmp_path, dtype=jnp.float32, weights="int8")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    held = sum(weight.nbytes for weight in jax.tree.leaves(nnx.state(loaded)))
    assert held < 0.27 * whole
    # A device of the CPU may take over the host's arrays; beside them, a few weights.
    assert peak < held + 3 * (2048 * 256 * 4) < 0.8 * whole


@pytest.mark.parametrize("rows", [1, 5, 8, 65])
def test_products_in_bfloat16_are_near_float64(rows: int) -> None:
    rng = np.random.default_rng(rows)
    linear = Linear(48, 24, ("mlp", "embed"), bias=True, dtype=jnp.bfloat16, rngs=None)
    linear.hold_int8()
    weight = (rng.standard_normal((24, 48)) * 10.0 ** rng.uniform(-3, 3, (24, 1))).astype("f4")
    values, scale = quantize(weight)
    assert linear.scale is not None
    assert linear.bias is not None
    linear.weight[...], linear.scale[...] = jnp.asarray(values), jnp.asarray(scale)
    linear.bias[...] = jnp.asarray(rng.standard_normal(24), jnp.bfloat16)
    x = jnp.asarray(rng.standard_normal((rows, 48)), jnp.bfloat16)

    y = jax.jit(lambda x: linear(x))(x)

    assert y.dtype == jnp.bfloat16
    wide: Any = np.asarray(x, np.float64)
    matrix = values * scale.astype(np.float64)[:, None]
    bias = np.asarray(linear.bias[...], np.float64)
    # A CPU may sum in bfloat16, whose errors are relative to the terms.
    room = 3 * 2.0**-9 * (np.abs(wide) @ np.abs(matrix).T + np.abs(bias))
    assert (np.abs(np.asarray(y, np.float64) - (wide @ matrix.T + bias)) <= room).all()


def test_int8_of_a_stored_bfloat16_checkpoint(tmp_path: Path) -> None:
    decoder = random_decoder(tiny_config())
    write_hf_checkpoint(decoder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    rounded = {name: np.asarray(jnp.asarray(t, jnp.bfloat16)) for name, t in tensors.items()}
    save_file(rounded, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, _ = load_decoder(tmp_path, dtype=jnp.bfloat16, weights="int8")
    gate = loaded.layers[2].mlp.gate
    stored = rounded["model.layers.2.mlp.gate_proj.weight"].astype(np.float32)
    np.testing.assert_array_equal(gate.weight[...], quantize(stored).values)
    token_ids = np.arange(12)[None]
    logits, _ = run_dense(loaded, token_ids)
    expected = ReferenceDecoder(loaded.config, dequantized_params(loaded)).logits(range(12))
    assert np.abs(logits[0] - expected).max() < 0.05 * np.abs(expected).max()
