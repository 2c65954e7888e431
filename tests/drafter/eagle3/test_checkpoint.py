"""EAGLE-3 checkpoints: the published format read and written, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.drafter.builders import TARGET, drafter_config
from tests.drafter.eagle3.test_method import VOCAB, eagle3_drafter

from blockdraft_drafter.checkpoint import load_drafter, published_arrays, save_drafter
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.eagle3.config import (
    Eagle3Config,
    published_layer_ids,
)
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_drafter.sources import obtain_drafter, published_method, shipped_for
from blockdraft_models.errors import CheckpointError, ResolveError

HIDDEN = TARGET.config.hidden_size


def write(directory: Path, *, extra: dict[str, Any] | None = None, **overrides: Any) -> Path:
    """A directory as SafeAILab publishes them: nothing of ours in the configuration."""
    drafter = eagle3_drafter(draft_vocab=24)
    save_drafter(drafter.model, directory, drafter.draft_ids)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    for ours in ("blockdraft", "eagle_config", "norm_before_residual", "head_dim"):
        del config[ours]
    path.write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"], **overrides}))
    if extra:
        tensors = load_file(directory / "model.safetensors")
        save_file({**tensors, **extra}, directory / "model.safetensors")
    return directory


def load(directory: Path) -> Drafter[Eagle3]:
    return load_drafter(EAGLE3, directory, TARGET, block_size=6, dtype=jnp.float32)


def test_published_names() -> None:
    names = {tensor.name for tensor in Eagle3Config.default_for(TARGET.config).tensors()}
    assert names == {
        "fc.weight",
        "norm.weight",
        *(
            f"midlayer.{name}.weight"
            for name in (
                "input_layernorm",
                "hidden_norm",
                "post_attention_layernorm",
                *(f"self_attn.{p}_proj" for p in "qkvo"),
                *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
            )
        ),
    }


def test_published_capture_points() -> None:
    """Layers 2, L / 2 and L - 3 are *entered*: the outputs of the layers before them."""
    assert published_layer_ids(32) == (1, 15, 28)
    assert published_layer_ids(36) == (1, 17, 32)
    assert published_layer_ids(7) == (1, 2, 3)
    with pytest.raises(ValueError, match="6 layers"):
        published_layer_ids(6)


def test_a_published_directory_loads(tmp_path: Path) -> None:
    head = np.random.default_rng(0).standard_normal((24, HIDDEN)).astype(np.float16)
    extra = {"lm_head.weight": head, "t2d": np.zeros(VOCAB, np.bool_)}
    drafter = load(write(tmp_path, extra=extra))
    config = drafter.model.config
    assert config.target_layer_ids == published_layer_ids(TARGET.config.num_layers)
    assert (config.block_size, config.draft_vocab_size, config.trained) == (6, 24, True)
    assert not config.norm_before_residual
    made = eagle3_drafter(draft_vocab=24)
    assert drafter.draft_ids is not None
    assert made.draft_ids is not None
    assert drafter.draft_ids.tolist() == made.draft_ids.tolist()
    for name, array in published_arrays(made.model).items():
        np.testing.assert_array_equal(published_arrays(drafter.model)[name], array)
    assert drafter.head is not None
    np.testing.assert_array_equal(drafter.head, head.astype(np.float32))
    assert drafter.embedding is None


@pytest.mark.parametrize(("fill", "own"), [(0.0, False), (0.5, True)])
def test_an_embedding_of_zeros_is_the_targets(tmp_path: Path, fill: float, own: bool) -> None:
    extra = {"embed_tokens.weight": np.full((VOCAB, HIDDEN), fill, np.float32)}
    assert (load(write(tmp_path, extra=extra)).embedding is not None) == own


def test_capture_points_may_be_named(tmp_path: Path) -> None:
    named: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [3, 4, 8]}
    assert load(write(tmp_path, **named)).model.config.target_layer_ids == (2, 3, 7)
    nested: dict[str, Any] = {"eagle_config": named}
    assert load(write(tmp_path, **nested)).model.config.target_layer_ids == (2, 3, 7)


def test_both_conventions_of_capture_points_are_read(tmp_path: Path) -> None:
    """Those that begin with 1 name outputs, as SpecForge writes them, and are taken as they are."""
    named: dict[str, Any] = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}}
    assert load(write(tmp_path, **named)).model.config.target_layer_ids == (1, 3, 7)
    empty: dict[str, Any] = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}
    assert load(write(tmp_path, **empty)).model.config.target_layer_ids == published_layer_ids(8)


@pytest.mark.parametrize("layer_ids", [(0, 3, 5), (1, 3, 5), (2, 3, 7)])
def test_capture_points_round_trip(layer_ids: tuple[int, ...]) -> None:
    config = Eagle3Config.default_for(TARGET.config, target_layer_ids=layer_ids)
    again = Eagle3Config.from_hf(config.to_hf(), TARGET.config, block_size=2)
    assert again.target_layer_ids == layer_ids


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    drafter = eagle3_drafter(norm_before_residual=True, target_fingerprint=TARGET.fingerprint)
    save_drafter(drafter.model, tmp_path)
    loaded = load(tmp_path)
    assert loaded.model.config.to_hf() == drafter.model.config.to_hf()
    assert loaded.fingerprint == drafter.fingerprint
    assert loaded.draft_ids is None


def test_all_of_a_drafters_own_tensors_count(tmp_path: Path) -> None:
    offsets = load_file(write(tmp_path) / "model.safetensors")["d2t"].copy()
    # The first two of the ids change places.
    offsets[:2] = offsets[1] + 1, offsets[0] - 1
    extras: list[dict[str, Any]] = [
        {},
        {"d2t": offsets},
        {"lm_head.weight": np.full((24, HIDDEN), 0.5, np.float32)},
        {"embed_tokens.weight": np.full((VOCAB, HIDDEN), 0.5, np.float32)},
        {"embed_tokens.weight": np.full((VOCAB, HIDDEN), 0.25, np.float32)},
    ]
    found = {load(write(tmp_path, extra=extra)).fingerprint for extra in extras}
    assert len(found) == len(extras)
    # Zeros stand for the target's, as if there were no embedding.
    zeros = {"embed_tokens.weight": np.zeros((VOCAB, HIDDEN), np.float32)}
    assert load(write(tmp_path, extra=zeros)).fingerprint in found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 2}, "one draft layer"),
        ({"hidden_size": 16, "head_dim": 8}, "hidden_size"),
        ({"vocab_size": 99}, "vocab_size"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [9]}}, "not in"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "auxiliary"),
        ({"draft_vocab_size": 30}, "d2t is"),
        ({"blockdraft": {"target_fingerprint": "f" * 16}}, "made for target"),
        ({"blockdraft": {"block_size": 1}}, "block_size"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, **change)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, extra={"midlayer.bias": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match=r"unexpected: midlayer\.bias"):
        load(tmp_path)
    tensors = load_file(write(tmp_path) / "model.safetensors")
    del tensors["d2t"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="missing: d2t"):
        load(tmp_path)


def test_methods_are_told_apart() -> None:
    dflash = drafter_config(draft_vocab_size=24).to_hf()
    assert published_method(dflash) is DFLASH
    assert published_method({**dflash, "architectures": None}) is DFLASH
    eagle = Eagle3Config.default_for(TARGET.config).to_hf()
    assert published_method(eagle) is EAGLE3
    assert published_method({**eagle, "architectures": ["LlamaForCausalLM"]}) is EAGLE3


def test_specifications(tmp_path: Path) -> None:
    def obtain(spec: str) -> Drafter[Any]:
        return obtain_drafter(spec, TARGET, block_size=5, num_layers=1, dtype=jnp.float32)

    drafter = obtain("random-eagle3:3")
    assert drafter.definition is EAGLE3
    assert drafter.fingerprint != obtain("random-eagle3").fingerprint
    assert drafter.model.config.block_size == 5
    assert not drafter.model.config.trained
    assert obtain(str(write(tmp_path / "public"))).definition is EAGLE3
    with pytest.raises(ResolveError, match="no EAGLE-3 drafter is shipped"):
        obtain("eagle3")
    with pytest.raises(ResolveError, match="whole number"):
        obtain("random-eagle3:x")


def test_only_drafters_of_the_kind_are_shipped_for_a_target(tmp_path: Path) -> None:
    drafter = eagle3_drafter(target_fingerprint=TARGET.fingerprint)
    save_drafter(drafter.model, tmp_path / "mine")
    assert shipped_for(EAGLE3, TARGET, tmp_path) == tmp_path / "mine"
    assert shipped_for(DFLASH, TARGET, tmp_path) is None
