"""Configurations as published, and the ones this project makes."""

from typing import Any

import pytest
from tests.drafter.builders import drafter_config, read_dflash
from tests.models.tiny import tiny_config

from blockdraft_drafter.dflash.config import (
    DFlashConfig,
    build_target_layer_ids,
)
from blockdraft_models.decoder.config import RopeScaling

# config.json of z-lab/Qwen3-4B-DFlash-b16, as far as it matters.
QWEN3_4B: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "attention_bias": False,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def published(**changes: Any) -> dict[str, Any]:
    return {**QWEN3_4B, **changes}


def test_reads_a_published_configuration() -> None:
    config = read_dflash(QWEN3_4B)
    assert config.block_size == 16
    assert config.mask_token_id == 151669
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert config.feature_width == 5 * 2560
    assert config.decoder.qk_norm
    assert config.decoder.head_dim == 128
    assert config.decoder.rope_theta == 1e6
    assert not config.is_causal
    assert config.trained
    assert [config.window(layer) for layer in range(5)] == [None] * 5


def test_block_size_may_be_nested() -> None:
    nested = published(dflash_config={**QWEN3_4B["dflash_config"], "block_size": 8})
    del nested["block_size"]
    assert read_dflash(nested).block_size == 8


def test_layer_ids_and_mask_may_be_at_the_top() -> None:
    flat = {**QWEN3_4B, **QWEN3_4B["dflash_config"]}
    del flat["dflash_config"]
    assert read_dflash(flat) == read_dflash(QWEN3_4B)


def test_rope_is_the_drafters_own() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    decoder = read_dflash(published(rope_theta=5e5, rope_scaling=scaling)).decoder
    assert decoder.rope_theta == 5e5
    assert decoder.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


def test_rope_may_be_nested() -> None:
    nested = published(rope_parameters={"rope_theta": 1e7, "rope_type": "default"})
    del nested["rope_theta"]
    assert read_dflash(nested).decoder.rope_theta == 1e7


def test_sliding_layers_are_honoured() -> None:
    types = ["sliding_attention"] * 4 + ["full_attention"]
    config = read_dflash(published(layer_types=types, sliding_window=2048, use_sliding_window=True))
    assert [config.window(layer) for layer in range(5)] == [2048] * 4 + [None]


def test_without_layer_types_the_first_layers_are_full() -> None:
    changed = published(sliding_window=64, use_sliding_window=True, max_window_layers=3)
    del changed["layer_types"]
    config = read_dflash(changed)
    assert [config.window(layer) for layer in range(5)] == [None] * 3 + [64] * 2


def test_a_disabled_window_is_no_window() -> None:
    config = read_dflash(published(sliding_window=64, use_sliding_window=False))
    assert config.sliding_window is None


@pytest.mark.parametrize(
    "changes",
    [
        {"is_causal": True},
        {"dflash_config": {**QWEN3_4B["dflash_config"], "causal": True}},
        {"dflash_config": {**QWEN3_4B["dflash_config"], "is_causal": True}},
    ],
)
def test_causality_is_read_from_either_place(changes: dict[str, Any]) -> None:
    assert read_dflash(published(**changes)).is_causal


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": None}, "lacks 'block_size'"),
        ({"block_size": 1}, "block_size must be at least 2"),
        ({"num_target_layers": 30}, "target layer 33 is not in"),
        ({"dflash_config": {"mask_token_id": 3}}, "lacks 'target_layer_ids'"),
        ({"layer_types": ["full_attention"], "sliding_window": 4}, "layer_types for 5 layers"),
        ({"layer_types": ["odd"] * 5, "sliding_window": 4}, "unknown layer_types"),
        ({"projector_type": "domino"}, "projector_type are not supported"),
        ({"conv_kernel": 2}, "conv_kernel are not supported"),
        ({"vocab_size": 1000}, "mask_token_id 151669 is outside"),
    ],
)
def test_refuses_what_it_cannot_compute(changes: dict[str, Any], message: str) -> None:
    changed = {key: value for key, value in published(**changes).items() if value is not None}
    changed["use_sliding_window"] = "sliding_window" in changes
    with pytest.raises(ValueError, match=message):
        read_dflash(changed)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": True, "target_fingerprint": "0123456789abcdef", "trained": True},
        {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 9},
        {"sample_from_anchor": True, "block_size": 9},
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    config = drafter_config(**changes)
    again = read_dflash(config.to_hf())
    assert again.to_hf() == config.to_hf()
    assert (again.layer_types, again.sliding_window) == (config.layer_types, config.sliding_window)
    assert again.trained == config.trained
    assert (again.block_size, again.block_inputs) == (config.block_size, config.block_inputs)


def test_a_block_whose_anchor_drafts_has_a_token_more_than_slots() -> None:
    config = read_dflash(published(sample_from_anchor=True))
    assert (config.block_inputs, config.block_size, config.first_drafting_input) == (16, 17, 0)
    written = config.to_hf()
    assert (written["block_size"], written["sample_from_anchor"]) == (16, True)
    nested = published(dflash_config={**QWEN3_4B["dflash_config"], "sample_from_anchor": True})
    assert read_dflash(nested).block_size == 17
    plain = read_dflash(QWEN3_4B)
    assert (plain.block_inputs, plain.block_size, plain.first_drafting_input) == (16, 16, 1)
    assert "sample_from_anchor" not in plain.to_hf()


def test_rope_scaling_round_trips() -> None:
    target = tiny_config(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192))
    config = DFlashConfig.default_for(target)
    again = read_dflash(config.to_hf())
    assert again.decoder.rope_scaling == target.rope_scaling


def test_feature_layers_are_those_of_the_paper() -> None:
    assert build_target_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert build_target_layer_ids(32, 5) == (1, 8, 15, 22, 29)
    assert build_target_layer_ids(64, 5) == (1, 16, 31, 46, 61)
    assert build_target_layer_ids(36, 1) == (18,)
    with pytest.raises(ValueError, match="no 5 feature layers"):
        build_target_layer_ids(4, 5)


@pytest.mark.parametrize("num_layers", range(1, 12))
def test_every_target_has_a_default_drafter(num_layers: int) -> None:
    target = tiny_config(num_layers=num_layers)
    config = DFlashConfig.default_for(target)
    assert config.num_target_layers == num_layers
    assert config.mask_token_id not in (*target.eos_token_ids, target.bos_token_id)
    assert not config.trained
