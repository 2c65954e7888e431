"""Quantized Hugging Face checkpoints load as what their numbers stand for."""

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.experts import Experts
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.loading import load_decoder

GOLDEN = Path(__file__).parents[2] / "golden" / "targets"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
INT8 = {**COMPRESSED, "format": "int-quantized"}


def quantize(folder: Path, method: dict[str, Any], kind: str) -> dict[str, np.ndarray]:
    """Quantize the matrices of the layers of a checkpoint; return the numbers they stand for."""
    tensors = load_file(folder / "model.safetensors")
    stored: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for name, weight in tensors.items():
        if weight.ndim != 2 or ".layers." not in name:
            stored[name] = meant[name] = weight
            continue
        rows, columns = weight.shape
        if kind == "block":
            scale = (
                np.abs(weight).max(keepdims=True)
                / 448
                * np.ones((-(-rows // 128), -(-columns // 128)), np.float32)
            )
            scale *= 1 + np.arange(scale.size).reshape(scale.shape)
            every = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :columns]
            suffix = "_scale_inv"
        else:
            scale = np.abs(weight).max(axis=1, keepdims=True) / (127 if kind == "int8" else 448)
            every, suffix = np.broadcast_to(scale, weight.shape), "_scale"
        narrow = (weight / every).astype(ml_dtypes.float8_e4m3fn if kind != "int8" else np.float32)
        narrow = np.rint(narrow).astype(np.int8) if kind == "int8" else narrow
        stored[name], stored[name + suffix] = narrow, scale.astype(np.float32)
        meant[name] = (narrow.astype(np.float64) * every).astype(np.float32)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    return meant


@pytest.mark.parametrize(
    ("method", "kind"), [(FP8, "block"), (COMPRESSED, "row"), (INT8, "int8")], ids=str
)
def test_numbers_are_what_they_stand_for(tmp_path: Path, method: dict[str, Any], kind: str) -> None:
    config = tiny_config("qwen3", hidden_size=160, intermediate_size=300, num_layers=2)
    write_hf_checkpoint(random_decoder(config), tmp_path)
    meant = quantize(tmp_path, method, kind)
    loaded, checkpoint = load_decoder(tmp_path, dtype=jnp.float32)
    plain = tmp_path / "plain"
    write_hf_checkpoint(loaded, plain)
    written = load_file(plain / "model.safetensors")
    assert written.keys() == meant.keys()
    for name, weight in written.items():
        np.testing.assert_allclose(weight, meant[name], rtol=1e-6, err_msg=name)
    # The same numbers have the same fingerprint, however they are stored.
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    _, same = load_decoder(plain, dtype=jnp.float32)
    assert same.fingerprint == checkpoint.fingerprint


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (3, 1)])
def test_scales_of_another_shape_are_refused(tmp_path: Path, shape: tuple[int, int]) -> None:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    quantize(tmp_path, INT8, "int8")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = np.ones(shape, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=re.escape(f"is {shape}, the weight")):
        load_decoder(tmp_path, dtype=jnp.float32)


def test_mxfp4_experts_are_those_of_their_blocks(tmp_path: Path) -> None:
    source, inner = GOLDEN / "gpt-oss", 64  # wide enough for whole blocks
    rng = np.random.default_rng(0)
    expected: dict[str, np.ndarray] = {}
    stored: dict[str, np.ndarray] = {}
    values = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
    for name, weight in load_file(source / "model.safetensors").items():
        if name.endswith("gate_up_proj_bias"):
            weight = np.resize(weight, (len(weight), 2 * inner))
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = weight
            continue
        ins, outs = (32, 2 * inner) if name.endswith("gate_up_proj") else (inner, 32)
        blocks = rng.integers(0, 256, (len(weight), outs, ins // 32, 16), np.uint8)
        scales = rng.integers(118, 124, blocks.shape[:3], np.uint8)
        stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
        dense = expected[name] = np.zeros((len(weight), ins, outs), np.float32)
        for (e, o, g, b), byte in np.ndenumerate(blocks):
            for half, code in enumerate((byte & 15, byte >> 4)):
                place = g * 32 + 2 * b + half
                dense[e, place, o] = values[code] * 2.0 ** (int(scales[e, o, g]) - 127)
    config = json.loads((source / "config.json").read_text())
    config |= {"intermediate_size": inner, "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(stored, tmp_path / "model.safetensors")
    decoder, _ = load_decoder(tmp_path, dtype=jnp.float32)
    for number, layer in enumerate(decoder.layers):
        stem = f"model.layers.{number}.mlp.experts"
        both, down = expected[f"{stem}.gate_up_proj"], expected[f"{stem}.down_proj"]
        assert isinstance(layer.mlp, Experts)
        gate, up = (both[..., place::2].swapaxes(1, 2) for place in (0, 1))
        np.testing.assert_array_equal(layer.mlp.gate.weight[...], gate)
        np.testing.assert_array_equal(layer.mlp.up.weight[...], up)
        np.testing.assert_array_equal(layer.mlp.down.weight[...], down)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantized by 'gptq' are not supported"),
        ({**COMPRESSED, "format": "pack-quantized"}, "format 'pack-quantized' are not supported"),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, method: dict[str, Any], message: str) -> None:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    with pytest.raises(CheckpointError, match=message):
        load_decoder(tmp_path, dtype=jnp.float32)


@pytest.mark.parametrize(
    ("part", "shape", "dtype"),
    [
        ("blocks", (4, 96, 16), np.uint8),
        ("blocks", (4, 96, 1, 8), np.uint8),
        ("blocks", (4, 96, 1, 16), np.float32),
        ("scales", (4, 96, 2), np.uint8),
        ("scales", (4, 96, 1), np.float32),
    ],
)
def test_damaged_mxfp4_is_refused(
    tmp_path: Path, part: str, shape: tuple[int, ...], dtype: Any
) -> None:
    source = GOLDEN / "gpt-oss"
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    del tensors[name]
    forms: dict[str, tuple[Any, Any]] = {
        "blocks": ((4, 96, 1, 16), np.uint8),
        "scales": ((4, 96, 1), np.uint8),
        part: (shape, dtype),
    }
    tensors.update({f"{name}_{each}": np.zeros(*form) for each, form in forms.items()})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="do not fit its config"):
        load_decoder(tmp_path, dtype=jnp.float32)
