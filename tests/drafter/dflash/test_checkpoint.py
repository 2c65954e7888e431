"""Drafters on disk: round trips, and everything that must be refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.drafter.builders import TARGET, drafter_config, random_drafter, read_dflash
from tests.drafter.dflash.test_config import QWEN3_4B

from blockdraft_drafter.checkpoint import load_drafter, published_arrays, save_drafter
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.sources import _KNOWN, NoDrafterError, obtain_drafter, shipped_for
from blockdraft_models.errors import CheckpointError, ResolveError

Tensors = dict[str, Any]


def write(directory: Path, change: Callable[[Tensors], None] = lambda tensors: None) -> Path:
    """Save a drafter, then change its tensors."""
    save_drafter(random_drafter(drafter_config()).model, directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return directory


def test_five_layers_have_the_58_published_tensors() -> None:
    tensors = list(read_dflash(QWEN3_4B).tensors())
    names = {tensor.name: tensor.shape for tensor in tensors}
    assert len(names) == len(tensors) == 58
    assert names["fc.weight"] == (2560, 5 * 2560)
    assert names["norm.weight"] == names["hidden_norm.weight"] == (2560,)
    assert names["layers.4.self_attn.k_proj.weight"] == (1024, 2560)
    assert names["layers.0.self_attn.q_norm.weight"] == (128,)
    assert names["layers.0.mlp.down_proj.weight"] == (2560, 9728)


def test_round_trip(tmp_path: Path) -> None:
    drafter = random_drafter(drafter_config())
    save_drafter(drafter.model, tmp_path)
    loaded = load_drafter(DFLASH, tmp_path, TARGET, dtype=jnp.float32)
    assert loaded.fingerprint == drafter.fingerprint
    assert len(loaded.fingerprint) == 16
    again = published_arrays(loaded.model)
    for name, array in published_arrays(drafter.model).items():
        np.testing.assert_array_equal(again[name], array)


def test_prefixed_names_are_accepted(tmp_path: Path) -> None:
    def prefix(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[f"model.{name}"] = tensors.pop(name)

    path = write(tmp_path, prefix)
    fingerprint = random_drafter(drafter_config()).fingerprint
    assert load_drafter(DFLASH, path, TARGET, dtype=jnp.float32).fingerprint == fingerprint


def test_weights_are_converted(tmp_path: Path) -> None:
    model = load_drafter(DFLASH, write(tmp_path), TARGET, dtype=jnp.bfloat16).model
    assert {str(array.dtype) for array in published_arrays(model).values()} == {"bfloat16"}


def test_different_weights_have_different_fingerprints() -> None:
    fingerprints = {random_drafter(drafter_config(), seed).fingerprint for seed in range(4)}
    assert len(fingerprints) == 4


def test_every_weight_counts(tmp_path: Path) -> None:
    def fingerprint(change: Callable[[Tensors], None]) -> str:
        path = write(tmp_path, change)
        return load_drafter(DFLASH, path, TARGET, dtype=jnp.bfloat16).fingerprint

    def last_weight_of(name: str) -> Callable[[Tensors], None]:
        def change(tensors: Tensors) -> None:
            last = tensors[name].flat[-1]
            tensors[name].flat[-1] = np.nextafter(last, np.float32(np.inf))

        return change

    names = [tensor.name for tensor in drafter_config().tensors()]
    found = {fingerprint(last_weight_of(name)) for name in names}
    assert len(found | {random_drafter(drafter_config()).fingerprint}) == len(names) + 1


def remove(tensors: Tensors) -> None:
    del tensors["layers.1.self_attn.k_norm.weight"]


def add(tensors: Tensors) -> None:
    tensors["embed_tokens.weight"] = np.zeros((2, 2), np.float32)


def reshape(tensors: Tensors) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].T.copy()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove, "missing: layers.1.self_attn.k_norm.weight"),
        (add, "unexpected: embed_tokens.weight"),
        (reshape, r"shape: fc.weight is \(96, 32\), expected \(32, 96\)"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_drafter(DFLASH, write(tmp_path, change), TARGET, dtype=jnp.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "hidden_size is 32, the target has 64"),
        ({"vocab_size": 65}, "vocab_size is 64, the target has 65"),
        ({"num_layers": 9}, "num_target_layers is 8, the target has 9"),
    ],
)
def test_another_target_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    other = replace(TARGET, config=replace(TARGET.config, **changes))
    with pytest.raises(CheckpointError, match=message):
        load_drafter(DFLASH, write(tmp_path), other, dtype=jnp.float32)


def test_another_fingerprint_is_refused_naming_both(tmp_path: Path) -> None:
    config = drafter_config(target_fingerprint=TARGET.fingerprint)
    save_drafter(random_drafter(config).model, tmp_path)
    load_drafter(DFLASH, tmp_path, TARGET, dtype=jnp.float32)
    with pytest.raises(CheckpointError, match=r"0123456789abcdef, not for ffffffffffffffff"):
        load_drafter(DFLASH, tmp_path, replace(TARGET, fingerprint="f" * 16), dtype=jnp.float32)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    weights = write(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot read"):
        load_drafter(DFLASH, tmp_path, TARGET, dtype=jnp.float32)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read"):
        load_drafter(DFLASH, tmp_path, TARGET, dtype=jnp.float32)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(CheckpointError, match="lacks"):
        load_drafter(DFLASH, tmp_path, TARGET, dtype=jnp.float32)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_drafter(DFLASH, tmp_path / "nowhere", TARGET, dtype=jnp.float32)


def test_specifications() -> None:
    def obtain(spec: str) -> str:
        return obtain_drafter(
            spec, TARGET, block_size=4, num_layers=1, dtype=jnp.float32
        ).fingerprint

    assert obtain("random") == obtain("random:0")
    assert obtain("random:1") != obtain("random:0")
    with pytest.raises(ResolveError, match="must be a whole number"):
        obtain("random:x")
    with pytest.raises(ResolveError):
        obtain("no-such-thing")


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        assert repository == "z-lab/Tiny-DFlash-b4"
        return str(write(tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    drafter = obtain_drafter(
        "z-lab/Tiny-DFlash-b4", TARGET, block_size=9, num_layers=1, dtype=jnp.float32
    )
    assert drafter.fingerprint == random_drafter(drafter_config()).fingerprint


@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "qwen/qwen3-8b"])
def test_auto_fetches_the_drafter_published_for_a_hub_id(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        fetched.append(repository)
        return str(write(tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    obtain = partial(obtain_drafter, "auto", TARGET, block_size=4, num_layers=1, dtype=jnp.float32)
    drafter = obtain(target_spec=target)
    assert fetched == ["z-lab/Qwen3-8B-DFlash-b16"]
    assert drafter.fingerprint == random_drafter(drafter_config()).fingerprint
    # The name of a folder is no hub id, whatever is in it.
    with pytest.raises(NoDrafterError, match="no drafter is known for this target"):
        obtain(target_spec="/models/Qwen3-8B")
    assert len(fetched) == 1


def test_known_drafters_are_looked_for_in_lower_case() -> None:
    assert all(target == target.lower() for target in _KNOWN)


def test_auto_finds_the_drafter_of_the_target(tmp_path: Path) -> None:
    mine = drafter_config(target_fingerprint=TARGET.fingerprint)
    save_drafter(random_drafter(mine).model, tmp_path / "mine")
    other = drafter_config(target_fingerprint="f" * 16)
    save_drafter(random_drafter(other).model, tmp_path / "a-other")
    assert shipped_for(DFLASH, TARGET, tmp_path) == tmp_path / "mine"
    assert shipped_for(DFLASH, replace(TARGET, fingerprint="0" * 16), tmp_path) is None
