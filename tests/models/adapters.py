"""LoRA adapters of tiny decoders in the files of PEFT."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.families.table import tensor_names

ALPHA = 6


def write_adapter(
    path: Path, config: DecoderConfig, rank: int, seed: int, options: dict[str, Any] | None = None
) -> None:
    """Write a random adapter of all linear maps of a family that stores them one by one."""
    rng, tensors = np.random.default_rng(seed), {}
    for name in tensor_names(config):
        if name.path.startswith("layers.") and len(name.shape) == 2:
            out_width, in_width = name.shape
            stored = f"base_model.model.{name.hf.removesuffix('.weight')}"
            for part, shape in (("A", (rank, in_width)), ("B", (out_width, rank))):
                values = rng.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
                tensors[f"{stored}.lora_{part}.weight"] = values
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    published = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, **(options or {})}
    (path / "adapter_config.json").write_text(json.dumps(published))


def merged(
    params: dict[str, np.ndarray], path: Path, config: DecoderConfig
) -> dict[str, np.ndarray]:
    """Return the float64 weights, by their paths in the decoder, with an adapter added to them."""
    tensors, result = load_file(path / "adapter_model.safetensors"), dict(params)
    for name in tensor_names(config):
        stored = f"base_model.model.{name.hf.removesuffix('.weight')}.lora_"
        if f"{stored}A.weight" in tensors:
            down, up = (tensors[f"{stored}{part}.weight"].astype(np.float64) for part in "AB")
            result[name.path] = params[name.path] + up @ down * (ALPHA / len(down))
    return result
