"""LoRA adapters that cannot be applied are refused, in a message that names the folder."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tests.models.adapters import write_adapter
from tests.models.hostile import change_json
from tests.models.tiny import LIKE_GPT_OSS, tiny_config

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.adapters import load_adapters, read_adapter

CONFIG = tiny_config(num_layers=1)
QUERY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_adapter(tmp_path / "sql", CONFIG, 2, seed=0)
    return tmp_path


def retensor(folder: Path, **changes: np.ndarray | None) -> None:
    """Replace tensors of the query's matrices, or leave them out."""
    file = folder / "sql" / "adapter_model.safetensors"
    tensors = load_file(file)
    for part, values in changes.items():
        del tensors[QUERY.format(part)]
        if values is not None:
            tensors[QUERY.format(part)] = values
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"use_dora": True}, "use_dora True"),
        ({"bias": "all"}, "bias 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_alpha": None}, "lora_alpha must be a number, got None"),
        ({"lora_alpha": True}, "lora_alpha must be a number, got True"),
        ({"lora_alpha": math.inf}, "infinite or not a number"),
        ({"lora_alpha": 1e39}, "infinite or not a number"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "is no name of a module"),
        ({"alpha_pattern": {"q_proj": "1"}}, "lora_alpha must be a number, got '1'"),
    ],
)
def test_options_that_change_the_computation(
    folder: Path, changes: dict[str, Any], match: str
) -> None:
    change_json(folder / "sql" / "adapter_config.json", **changes)
    with pytest.raises(CheckpointError, match=re.escape(match)) as refusal:
        read_adapter(folder / "sql")
    assert str(folder / "sql") in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: retensor(f, A=None), "no two matrices of one rank"),
        (lambda f: retensor(f, A=np.zeros((3, 32), np.float32)), "no two matrices of one rank"),
        (lambda f: retensor(f, A=np.zeros((2, 31), np.float32)), r"(32, 31), not (32, 32)"),
        (lambda f: retensor(f, B=np.zeros((33, 2), np.float32)), r"(33, 32), not (32, 32)"),
        (lambda f: retensor(f, B=np.zeros((2, 2, 2), np.float32)), "has 3 axes, not 2"),
        (lambda f: retensor(f, A=np.full((2, 32), np.nan, np.float32)), "not a number"),
        (lambda f: retensor(f, A=np.zeros((2, 32), np.int8)), "stored as I8"),
        (lambda f: (f / "sql" / "adapter_model.safetensors").unlink(), "adapter_model.safetensors"),
        (lambda f: (f / "sql" / "adapter_config.json").unlink(), "has no subfolder"),
        (lambda f: (f / "sql" / "adapter_config.json").write_text("{"), "cannot read"),
        (lambda f: write_adapter(f / "other", tiny_config(num_layers=2), 2, 0), "layers.1."),
    ],
)
def test_files_that_do_not_fit(folder: Path, change: Callable[[Path], Any], match: str) -> None:
    change(folder)
    with pytest.raises(CheckpointError, match=re.escape(match)) as refusal:
        load_adapters(Decoder(CONFIG, dtype=jnp.float32, rngs=None), folder)
    assert str(folder) in str(refusal.value)


def test_experts_cannot_be_adapted(folder: Path) -> None:
    mixture = tiny_config(num_layers=1, **{**LIKE_GPT_OSS, "windows": ()})
    tensors = load_file(folder / "sql" / "adapter_model.safetensors")
    attention = {name: tensors[name] for name in tensors if "self_attn" in name}
    save_file(attention, folder / "sql" / "adapter_model.safetensors")
    load_adapters(Decoder(mixture, dtype=jnp.float32, rngs=None), folder)
    expert = "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_{}.weight"
    pair = {expert.format("A"): np.zeros((2, 32)), expert.format("B"): np.zeros((64, 2))}
    save_file({**attention, **pair}, folder / "sql" / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts\.0\.up_proj is no linear map"):
        load_adapters(Decoder(mixture, dtype=jnp.float32, rngs=None), folder)


def test_an_adapter_has_the_fingerprint_of_its_values(folder: Path) -> None:
    first = read_adapter(folder / "sql").fingerprint
    config = folder / "sql" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_dropout": 0.1}))
    assert read_adapter(folder / "sql").fingerprint == first
    change_json(config, lora_alpha=7)
    scaled = read_adapter(folder / "sql").fingerprint
    retensor(folder, B=np.zeros((32, 2), np.float32))
    assert len({first, scaled, read_adapter(folder / "sql").fingerprint}) == 3


def test_maps_that_no_adapter_changes_stay_as_they_are(folder: Path) -> None:
    file = folder / "sql" / "adapter_model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "q_proj" in k}, file)
    decoder = Decoder(CONFIG, dtype=jnp.float32, rngs=None)
    before = nnx.state(decoder)
    load_adapters(decoder, folder)
    added = nnx.to_flat_state(nnx.state(decoder)).paths
    assert set(added) - set(nnx.to_flat_state(before).paths) == {
        ("layers", 0, "attention", "query", "adapters", part, "weight") for part in ("down", "up")
    }
