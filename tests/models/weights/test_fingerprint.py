"""One fingerprint for the same weights, whatever format, shards and blocks they come in."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder, write_gguf
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.weights import fingerprint
from blockdraft_models.weights.fingerprint import combined, values_digest
from blockdraft_models.weights.loading import load_checkpoint_config


def identity(path: Path) -> str:
    return load_checkpoint_config(path).fingerprint


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_every_weight_counts(kind: Any, tmp_path: Path) -> None:
    """One weight of each tensor is a little off, as after merging an adapter."""
    write_hf_checkpoint(random_decoder(tiny_config(kind, attention_bias=True)), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    found = {identity(tmp_path)}
    for name, weight in tensors.items():
        changed = weight.copy()
        changed.flat[-1] = np.nextafter(changed.flat[-1], np.float32(np.inf))
        save_file({**tensors, name: changed}, file)
        found.add(identity(tmp_path))
    assert len(found) == 1 + len(tensors)


def test_swapped_tensors_are_other_weights(tmp_path: Path) -> None:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    before = identity(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    gate, up = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up"))
    save_file({**tensors, gate: tensors[up], up: tensors[gate]}, file)
    assert identity(tmp_path) != before


def test_float_types_and_shards_do_not_matter(tmp_path: Path) -> None:
    """Values that all types can hold, but no two tensors of one type beside each other."""
    write_hf_checkpoint(random_decoder(tiny_config("qwen3")), tmp_path)
    file = tmp_path / "model.safetensors"
    # Eight bits are as many as bfloat16 has, and none is too small for float16.
    coarse = {
        name: np.round(weight * 64).astype(np.float32) / 64
        for name, weight in load_file(file).items()
    }
    save_file(coarse, file)
    expected = identity(tmp_path)
    types = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
    file.unlink()
    weight_map = {}
    for shard, dtype in enumerate(types):
        part = {name: coarse[name].astype(dtype) for name in list(coarse)[shard :: len(types)]}
        save_file(part, tmp_path / f"{shard}.safetensors")
        weight_map.update(dict.fromkeys(part, f"{shard}.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert identity(tmp_path) == expected


@pytest.mark.parametrize("block_bytes", [1, 300, 1000, 1 << 20])
def test_blocks_do_not_matter(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least of all those that would cut the reordered heads of a GGUF."""
    decoder = random_decoder(tiny_config())
    write_hf_checkpoint(decoder, tmp_path / "hf")
    write_gguf(decoder, tmp_path / "model.gguf")
    expected = identity(tmp_path / "hf")
    monkeypatch.setattr(fingerprint, "_BLOCK_BYTES", block_bytes)
    assert identity(tmp_path / "hf") == identity(tmp_path / "model.gguf") == expected


def test_the_digest_is_of_values() -> None:
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(ml_dtypes.bfloat16)
    wide = rows.astype(np.float32)
    whole = values_digest([wide])
    assert values_digest([rows[:3], rows[3:]]) == whole
    assert values_digest([wide.astype(">f4")]) == whole
    assert values_digest([np.asfortranarray(wide)]) == whole
    assert values_digest([wide[::-1]]) != whole
    too_large, infinite = np.array([1e300], np.float64), np.array([np.inf], np.float32)
    assert values_digest([too_large]) == values_digest([infinite])


def test_the_description_counts() -> None:
    digests = [values_digest([np.ones(3)])]
    assert combined("a", digests) != combined("b", digests)
    assert len(combined("a", digests)) == 16


def test_as_many_threads_as_this_process_may_use_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: None
) -> None:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    started: list[int] = []

    def pool(threads: int) -> ThreadPoolExecutor:
        started.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr(fingerprint, "ThreadPoolExecutor", pool)
    identity(tmp_path)
    assert started == [1]
