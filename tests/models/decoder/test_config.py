"""Reading configurations, and refusing what the decoder does not compute."""

import dataclasses
import json
from typing import Any

import pytest
from tests.models.builders import LLAMA3_SCALING
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.config import DecoderConfig, RopeScaling
from blockdraft_models.weights.huggingface_export import hf_config

LLAMA_3_1_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}


def test_llama_3_1_is_read() -> None:
    config = DecoderConfig.from_hf(LLAMA_3_1_8B)
    assert config.head_dim == 128
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert not config.qk_norm


def test_rope_parameters_of_transformers_5_are_read() -> None:
    config = dict(LLAMA_3_1_8B)
    parameters = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    assert DecoderConfig.from_hf({**config, "rope_parameters": parameters}) == (
        DecoderConfig.from_hf(LLAMA_3_1_8B)
    )


def test_stop_tokens_of_the_generation_config_win() -> None:
    config = DecoderConfig.from_hf(LLAMA_3_1_8B, {"eos_token_id": 5})
    assert config.eos_token_ids == (5,)


def test_qwen3_has_its_own_defaults() -> None:
    config = DecoderConfig.from_hf({**LLAMA_3_1_8B, "model_type": "qwen3", "rope_scaling": None})
    assert config.qk_norm
    assert config.head_dim == 128


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("scaling", [None, LLAMA3_SCALING])
def test_written_configs_read_back(kind: Any, scaling: RopeScaling | None) -> None:
    config = tiny_config(kind, rope_scaling=scaling, attention_bias=True)
    assert DecoderConfig.from_hf(json.loads(json.dumps(hf_config(config)))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"type": "llama3"}}, "lacks 'factor'"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_unsupported_hf_configs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecoderConfig.from_hf({**LLAMA_3_1_8B, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be positive"),
        ({"num_kv_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "must be even"),
        ({"rms_norm_eps": 0.0}, "must be positive"),
        ({"eos_token_ids": (260,)}, "outside the vocabulary"),
        ({"bos_token_id": -1}, "outside the vocabulary"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**change)


@pytest.mark.parametrize("values", [(0.5, 1.0, 4.0, 64), (8.0, 4.0, 4.0, 64), (8.0, 1.0, 4.0, 0)])
def test_impossible_scalings_are_refused(values: tuple[float, float, float, int]) -> None:
    with pytest.raises(ValueError, match="rope scaling"):
        RopeScaling(*values)


GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.vocab_size": 260,
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.bos_token_id": 257,
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.ggml.eot_token_id": 259,
}


def test_gguf_metadata_is_read() -> None:
    config = DecoderConfig.from_gguf(GGUF, ["blk.0.attn_q.bias"])
    assert config == tiny_config(name="Tiny", attention_bias=True, eos_token_ids=(258, 259))
    assert not DecoderConfig.from_gguf(GGUF, ["output.weight"]).tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "gemma"}, "architecture 'gemma'"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.rope.dimension_count": 4}, "a part of the head"),
        ({"llama.attention.value_length": 4}, "differ in width"),
        ({"llama.block_count": None}, "lacks 'llama.block_count'"),
    ],
)
def test_unsupported_gguf_metadata_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecoderConfig.from_gguf({**GGUF, **change})


def test_canonical_json_describes_the_function_only() -> None:
    config = tiny_config()
    renamed = dataclasses.replace(
        config, name="other", bos_token_id=None, eos_token_ids=(), max_position_embeddings=99
    )
    assert renamed.canonical_json() == config.canonical_json()
    assert tiny_config(rope_theta=1e5).canonical_json() != config.canonical_json()
    assert json.loads(config.canonical_json())["num_layers"] == 3
