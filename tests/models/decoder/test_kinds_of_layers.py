"""Configurations of families whose layers are of several kinds."""

from typing import Any

import pytest
from tests.models.decoder.test_config import LLAMA_3_1_8B

from blockdraft_models.decoder.config import DeltaSizes
from blockdraft_models.decoder.rope_scaling import LinearScaling, ProportionalScaling, YarnScaling
from blockdraft_models.families.published_config import config_from_hf

GEMMA3: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "sliding_window": 1024,
}
GEMMA4: dict[str, Any] = {
    "hidden_size": 2560,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 10240,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "vocab_size": 262144,
}


@pytest.mark.parametrize(
    ("change", "bases"),
    [
        ({}, (1e6, 1e4)),
        ({"rope_theta": 5e5, "rope_local_base_freq": 2e4}, (5e5, 2e4)),
        ({"rope_parameters": {"full_attention": {"type": "linear", "factor": 8.0}}}, (1e6, 1e4)),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3e4}}}, (1e6, 3e4)),
    ],
)
def test_gemma_rotates_by_kind_of_layer(change: dict[str, Any], bases: tuple[float, float]) -> None:
    config = config_from_hf({**GEMMA3, **change})
    assert (config.rope_theta, config.local_rope_theta) == bases
    linear = LinearScaling(8.0) if "full_attention" in change.get("rope_parameters", ()) else None
    assert config.rope_scaling == linear


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"type": "linear", "factor": 8.0}}, "other than by kind of attention"),
        (
            {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}},
            "rope scaling of layers with a window",
        ),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping '30.0' is not supported"),
    ],
)
def test_what_gemma_does_not_compute_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_hf({**GEMMA3, **change})


def test_olmo_stretches_layers_without_a_window_only() -> None:
    yarn = {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.2,
    }
    published = {**LLAMA_3_1_8B, "model_type": "olmo3", "max_position_embeddings": 65536}
    old = config_from_hf({**published, "rope_scaling": yarn})
    new = {"full_attention": {**yarn, "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 5e5}}
    assert config_from_hf({**published, "rope_scaling": None, "rope_parameters": new}) == old
    assert old.rope_scaling == YarnScaling(8.0, 32.0, 1.0, 8192, 1.2)
    assert (old.rope_theta, old.local_rope_theta, old.windows[2:4]) == (5e5, 5e5, (4096, 0))


def test_gemma_4_has_two_kinds_of_layers() -> None:
    published = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    config = config_from_hf(published)
    assert config.rope_scaling == ProportionalScaling(64)
    local, far = config.of_layer(0), config.of_layer(5)
    assert (local.head_dim, local.num_kv_heads, local.values_are_keys) == (256, 4, False)
    assert (far.head_dim, far.num_kv_heads, far.values_are_keys) == (512, 2, True)
    assert (local.query_scale, far.query_scale) == pytest.approx((256**0.5, 512**0.5))
    # As transformers 5 writes it.
    by_layer = {"5": {"head_dim": 512, "num_key_value_heads": 2}}
    assert config_from_hf({**published, "per_layer_config": by_layer}) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        ({"enable_moe_block": True}, "lacks 'num_experts'"),
        ({"per_layer_config": {"4": {"head_dim": 512}}}, "per_layer_config other than"),
        ({"per_layer_config": {"5": {"sliding_window": 8}}}, "per_layer_config other than"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9}, "vocab_size_per"),
    ],
)
def test_what_gemma_4_does_not_compute_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_hf({**GEMMA4, **change})


def test_last_layers_take_keys_of_their_kind() -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    shared = {"num_kv_shared_layers": 3, "layer_types": kinds, "use_double_wide_mlp": True}
    config = config_from_hf({**GEMMA4, **shared})
    assert [config.kv_layer(layer) for layer in range(6)] == [0, 1, 2, 1, 2, 1]
    assert [config.of_layer(layer).intermediate_size for layer in (2, 3)] == [10240, 20480]
    assert (config.shortened(4).shared_kv_layers, config.shortened(2).shared_kv_layers) == (1, 0)


QWEN3_NEXT: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "model_type": "qwen3_next",
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "rope_theta": 1e7,
}


def test_three_of_four_layers_of_qwen3_next_have_a_state() -> None:
    config = config_from_hf(QWEN3_NEXT)
    assert config.recurrent == (True, True, True, False) * 12
    assert config.delta == DeltaSizes(16, 32, 128, 128, 4)
    assert (config.rotary_dim, config.shared_expert_size, config.num_experts) == (64, 512, 512)
    assert config.of_layer(0).delta == config.delta
    assert config.of_layer(3).delta is None
    assert [config.cache_number(layer) for layer in range(5)] == [12, 13, 14, 0, 15]
    explicit = ["linear_attention"] * 3 + ["full_attention"]
    assert config_from_hf({**QWEN3_NEXT, "layer_types": explicit * 12}) == config
    axes = {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_theta": 1e7}
    assert config_from_hf({**QWEN3_NEXT, "rope_parameters": axes}) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 48}, "layers of sliding_attention are not"),
        ({"layer_types": ["linear_attention"] * 48}, "without layers of full_attention"),
        ({"layer_types": ["full_attention"]}, "states of 1 layers, of 48"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers is not supported"),
        ({"attention_bias": True}, "attention_bias 'True' is not supported"),
        ({"linear_num_key_heads": 5}, "a delta rule of"),
    ],
)
def test_what_qwen3_next_does_not_compute_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_hf({**QWEN3_NEXT, **change})
