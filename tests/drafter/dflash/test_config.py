"""Configurations as published, and the ones this project makes."""

from dataclasses import replace
from typing import Any

import pytest
from tests.drafter.builders import drafter_config, read_dflash
from tests.models.tiny import tiny_config

from blockdraft_drafter.dflash.config import DFlashConfig, build_target_layer_ids
from blockdraft_models.decoder.rope_scaling import RopeScaling

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


NESTED = QWEN3_4B["dflash_config"]
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SLIDING = ["sliding_attention"] * 4 + ["full_attention"]


def read(**changes: Any) -> DFlashConfig:
    """Read the published configuration with some fields changed, or removed if they are None."""
    fields = {**QWEN3_4B, **changes}
    return read_dflash({key: value for key, value in fields.items() if value is not None})


# config.json of the drafter of Muse Glimmer 30B (tests/fixtures of z-lab/dflash), as far as it
# differs.
DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "auto_map": None,
    "block_size": None,
    "dflash_config": {
        "block_size": 16,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "final_logit_softcapping": 20.0,
        "mask_token_id": 151669,
        "output_multiplier": 0.19611613513818404,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [1, 9, 17, 25, 33],
    },
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
}


def windows(config: DFlashConfig) -> list[int | None]:
    return [config.window(layer) for layer in range(config.decoder.num_layers)]


def test_reads_a_published_configuration() -> None:
    config = read()
    assert config.block_size == config.block_inputs == 16
    assert config.first_drafting_input == 1
    assert config.mask_token_id == 151669
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert config.feature_width == 5 * 2560
    assert config.decoder.qk_norm
    assert config.decoder.head_dim == 128
    assert config.decoder.rope_theta == 1e6
    assert not config.is_causal
    assert config.trained
    assert windows(config) == [None] * 5
    # Layer ids and mask may be at the top.
    assert read(dflash_config=None, **NESTED) == config


def test_reads_a_published_configuration_of_dflash2() -> None:
    config = read(**DFLASH2)
    assert config.block_size == 16
    assert (config.conv_group_size, config.selector_rank, config.selector_top_k) == (16, 256, 16)
    assert (config.output_multiplier, config.final_logit_softcapping) == (0.19611613513818404, 20.0)
    assert windows(config) == [2048] * 5
    assert not config.is_causal
    assert read_dflash(config.to_hf()) == config
    shapes = {tensor.name: tensor.shape for tensor in config.tensors()}
    # Those of DFlash, four for each layer, three of the selector.
    assert len(shapes) == 58 + 5 * 4 + 3
    assert shapes["layers.4.mlp_conv.base_kernel"] == (2, 2, 2560)
    assert shapes["layers.0.attention_conv.kernel_projection.weight"] == (4 * 160, 2560)
    assert shapes["candidate_selector.hidden_projection.weight"] == (256, 2560)
    assert shapes["candidate_selector.predecessor_codebook"] == (151936, 256)
    assert shapes["candidate_selector.successor_codebook"] == (151936, 256)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        # As DeepSpec and SpecForge publish it: the anchor drafts too, though nothing says so.
        ({"architectures": ["Qwen3DSparkModel"], "dflash_config": None, **NESTED}, 8),
        ({"architectures": ["DSparkDraftModel"]}, 8),
        ({"dflash_config": {**NESTED, "projector_type": "dspark"}}, 8),
        ({"architectures": ["Qwen3DSparkModel"], "sample_from_anchor": False}, 7),
        ({"markov_rank": 4}, 7),
    ],
)
def test_in_dspark_the_anchor_drafts(changes: dict[str, Any], size: int) -> None:
    config = read(block_size=7, **changes)
    assert (config.block_inputs, config.block_size) == (7, size)
    assert read_dflash(config.to_hf()) == config


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"block_size": None, "dflash_config": {**NESTED, "block_size": 8}}, "block_size", 8),
        ({"is_causal": True}, "is_causal", True),
        ({"dflash_config": {**NESTED, "causal": True}}, "is_causal", True),
        ({"dflash_config": {**NESTED, "is_causal": True}}, "is_causal", True),
        ({"sample_from_anchor": True}, "block_size", 17),
        ({"dflash_config": {**NESTED, "sample_from_anchor": True}}, "block_size", 17),
        ({"markov_rank": 4}, "markov_rank", 4),
        ({"dflash_config": {**NESTED, "markov_rank": 4}}, "markov_rank", 4),
        ({"draft_vocab_size": 10}, "draft_vocab_size", 10),
        ({"dflash_config": {**NESTED, "draft_vocab_size": 10}}, "draft_vocab_size", 10),
        ({"draft_vocab_size": 151936}, "draft_vocab_size", None),
    ],
    ids=str,
)
def test_fields_stand_in_either_place(changes: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(**changes), field) == value


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        (
            {"rope_theta": 5e5, "rope_scaling": SCALING},
            5e5,
            RopeScaling(8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e7}}, 1e7, None),
    ],
)
def test_rope_is_the_drafters_own(
    changes: dict[str, Any], theta: float, scaling: RopeScaling | None
) -> None:
    decoder = read(**changes).decoder
    assert (decoder.rope_theta, decoder.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"layer_types": SLIDING, "sliding_window": 2048, "use_sliding_window": True},
            [2048] * 4 + [None],
        ),
        # Without types the first layers are full.
        (
            {
                "layer_types": None,
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            [None] * 3 + [64] * 2,
        ),
        ({"sliding_window": 64, "use_sliding_window": False}, [None] * 5),
    ],
)
def test_windows(changes: dict[str, Any], expected: list[int | None]) -> None:
    config = read(**changes)
    assert windows(config) == expected
    assert (config.sliding_window is None) == (not any(expected))


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
        ({"conv_group_size": 16, "conv_kernel_size": 3}, "conv_kernel_size of 3 are not supported"),
        ({"conv_group_size": 100}, "conv_group_size 100 does not divide"),
        ({"selector_rank": 4}, "selector_top_k 0 is not in"),
        ({"selector_rank": 4, "markov_rank": 4, "selector_top_k": 2}, "a selector and a Markov"),
        ({"vocab_size": 1000}, "mask_token_id 151669 is outside"),
    ],
)
def test_refuses_what_it_cannot_compute(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**{**changes, "use_sliding_window": "sliding_window" in changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": True, "target_fingerprint": "0123456789abcdef", "trained": True},
        {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 9},
        {"sample_from_anchor": True, "block_size": 9},
        {"draft_vocab_size": 10, "markov_rank": 3},
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    config = drafter_config(**changes)
    again = read_dflash(config.to_hf())
    assert again.to_hf() == config.to_hf()
    # What a published configuration does not say of the layers is the target's name.
    assert replace(again, decoder=config.decoder) == config


def test_a_block_whose_anchor_drafts_has_a_token_more_than_slots() -> None:
    config = read(sample_from_anchor=True)
    assert (config.block_inputs, config.block_size, config.first_drafting_input) == (16, 17, 0)
    written = config.to_hf()
    assert (written["block_size"], written["sample_from_anchor"]) == (16, True)
    assert "sample_from_anchor" not in read().to_hf()


def test_rope_scaling_round_trips() -> None:
    target = tiny_config(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192))
    config = DFlashConfig.default_for(target)
    assert read_dflash(config.to_hf()).decoder.rope_scaling == target.rope_scaling


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
