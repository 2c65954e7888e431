"""Drafters in the format of vLLM's speculators are those that their publishers wrote."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.drafter.builders import (
    TARGET,
    WEIGHTS,
    drafter_config,
    eagle3_drafter,
    random_drafter,
    write_drafter,
)

from blockdraft_drafter.checkpoint import published_arrays
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.sources import load_any
from blockdraft_models.errors import CheckpointError

# Of the section of draft layers, as to_diff_dict of transformers writes it.
OF_LAYERS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "num_hidden_layers", "rms_norm_eps", "rope_theta", "vocab_size"),
    *("max_position_embeddings", "attention_bias", "hidden_act", "tie_word_embeddings"),
)


def rewritten(kind: str, drafter: Drafter[Any], path: Path, **changes: Any) -> Path:
    """Write a drafter in the format of speculators."""
    write_drafter(drafter, path)
    config = drafter.model.config
    published = json.loads((path / "config.json").read_text())
    layers = {name: published[name] for name in OF_LAYERS}
    layers["model_type"] = "qwen3" if config.decoder.qk_norm else "llama"
    inputs = [layer_id + 1 for layer_id in config.target_layer_ids]
    fields: dict[str, Any] = {
        "architectures": ["Speculator"],
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "org/target"}},
        "transformer_layer_config": layers,
        "draft_vocab_size": config.draft_vocab_size or config.decoder.vocab_size,
        "blockdraft": {"block_size": config.block_size},
    }
    if kind == "eagle3":
        fields["eagle_aux_hidden_state_layer_ids"] = inputs
        fields |= {name: published.get(name) for name in NORMS}
    else:
        fields["aux_hidden_state_layer_ids"] = inputs
        fields["block_size"] = published["block_size"]
        fields["mask_token_id"] = config.mask_token_id
        fields["sample_from_anchor"] = config.sample_from_anchor
        fields["markov_rank"] = config.markov_rank
        nested = published["dflash_config"].items()
        fields |= {name: it for name, it in nested if name not in OF_DFLASH}
    (path / "config.json").write_text(json.dumps(fields | changes))
    tensors = load_file(path / WEIGHTS)
    if kind == "eagle3":
        tensors = {name.replace("midlayer.", "layers.0."): it for name, it in tensors.items()}
    save_file(tensors, path / WEIGHTS)
    return path


OF_DFLASH = ("causal", "mask_token_id", "target_layer_ids")
NORMS = ("norm_before_residual", "fc_norm", "norm_before_fc")
DRAFTERS: dict[str, tuple[str, Drafter[Any]]] = {
    "eagle3": ("eagle3", eagle3_drafter(draft_vocab=24, norm_before_residual=True)),
    "eagle3 with a Qwen3 layer": ("eagle3", eagle3_drafter(qk_norm=True)),
    "eagle3 after the second layer": (
        "eagle3",
        eagle3_drafter(fc_norm=True, target_layer_ids=(0, 2, 4)),
    ),
    "eagle3 for gpt-oss": ("eagle3", eagle3_drafter(norm_before_fc=True)),
    "dflash": ("dflash", random_drafter(drafter_config())),
    "dflash2": (
        "dflash2",
        random_drafter(
            drafter_config(
                conv_group_size=16,
                selector_rank=3,
                selector_top_k=16,
                output_multiplier=1.5,
                final_logit_softcapping=4.0,
            )
        ),
    ),
    "dspark": ("dspark", random_drafter(drafter_config(markov_rank=4, sample_from_anchor=True))),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_they_are_those_of_their_publishers(name: str, tmp_path: Path) -> None:
    kind, drafter = DRAFTERS[name]
    path = rewritten(kind, drafter, tmp_path)
    loaded = load_any(path, TARGET, block_size=2, dtype=jnp.float32)
    assert loaded.definition is drafter.definition
    ours, theirs = loaded.model.config.to_hf(), drafter.model.config.to_hf()
    assert {**ours, "blockdraft": None} == {**theirs, "blockdraft": None}
    assert loaded.model.config.block_size == drafter.model.config.block_size
    if drafter.draft_ids is not None:
        np.testing.assert_array_equal(loaded.draft_ids, drafter.draft_ids)
    arrays = published_arrays(loaded.model)
    for stored, array in published_arrays(drafter.model).items():
        np.testing.assert_array_equal(arrays[stored], array)


def test_its_usual_capture_points_are_the_published_ones(tmp_path: Path) -> None:
    path = rewritten("eagle3", eagle3_drafter(), tmp_path, eagle_aux_hidden_state_layer_ids=None)
    loaded = load_any(path, TARGET, block_size=2, dtype=jnp.float32)
    assert loaded.model.config.target_layer_ids == (1, 3, 4)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle3", {"speculators_model_type": "peagle"}, "speculators_model_type of 'peagle'"),
        ("eagle3", {"norm_before_fc": True}, r"missing: input_norm\.weight"),
        ("eagle3", {"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ("eagle3", {"transformer_layer_config": [1]}, "transformer_layer_config must be an object"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, "input of the first"),
        ("dflash", {"aux_hidden_state_layer_ids": None}, "target_layer_ids"),
        ("dflash", {"mask_token_id": None}, "mask_token_id"),
    ],
)
def test_what_is_not_supported_is_named(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = rewritten(kind, DRAFTERS[kind][1], tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_any(path, TARGET, block_size=2, dtype=jnp.float32)


def test_a_tensor_under_both_names_is_refused(tmp_path: Path) -> None:
    path = rewritten("eagle3", eagle3_drafter(), tmp_path)
    tensors = load_file(path / WEIGHTS)
    name = "layers.0.hidden_norm.weight"
    twin = name.replace("layers.0.", "midlayer.")
    save_file({**tensors, twin: tensors[name]}, path / WEIGHTS)
    with pytest.raises(CheckpointError, match=f"twice, as {name} and {twin}"):
        load_any(path, TARGET, block_size=2, dtype=jnp.float32)


@pytest.mark.parametrize("is_causal", [True, False])
def test_windows_must_not_be_causal(is_causal: bool, tmp_path: Path) -> None:
    drafter = random_drafter(drafter_config())
    path = rewritten("dflash", drafter, tmp_path, sliding_window_non_causal=not is_causal)
    config = json.loads((path / "config.json").read_text())
    count = drafter.model.config.decoder.num_layers
    windows = {"layer_types": ["sliding_attention"] * count, "sliding_window": 16}
    config["transformer_layer_config"] |= windows
    (path / "config.json").write_text(json.dumps(config))
    if is_causal:
        with pytest.raises(CheckpointError, match="causal windows"):
            load_any(path, TARGET, block_size=2, dtype=jnp.float32)
    else:
        loaded = load_any(path, TARGET, block_size=2, dtype=jnp.float32)
        assert loaded.model.config.window(0) == 16
