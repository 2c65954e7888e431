"""The configurations of the public targets, with the fields that their publishers write."""

from typing import Any

import jax.numpy as jnp
import pytest

from blockdraft_models.decoder.attention import rotary_tables
from blockdraft_models.decoder.config import DecoderConfig, RopeScaling

LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def llama3_scaling(factor: float) -> dict[str, Any]:
    return {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


def qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        **QWEN3,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }


# hidden, inner, layers, heads, head width, tied, rope scaling factor, billions of weights
Expected = tuple[int, int, int, int, int, bool, float | None, float]
PUBLISHED: dict[str, tuple[dict[str, Any], Expected]] = {
    "Llama-3.1-8B-Instruct": (
        {
            **LLAMA3,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "rope_scaling": llama3_scaling(8.0),
            "tie_word_embeddings": False,
        },
        (4096, 14336, 32, 32, 128, False, 8.0, 8.03),
    ),
    "Llama-3.2-1B-Instruct": (
        {
            **LLAMA3,
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "rope_scaling": llama3_scaling(32.0),
            "tie_word_embeddings": True,
        },
        (2048, 8192, 16, 32, 64, True, 32.0, 1.24),
    ),
    "Llama-3.2-3B-Instruct": (
        {
            **LLAMA3,
            "head_dim": 128,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 24,
            "num_hidden_layers": 28,
            "rope_scaling": llama3_scaling(32.0),
            "tie_word_embeddings": True,
        },
        (3072, 8192, 28, 24, 128, True, 32.0, 3.21),
    ),
    "Qwen3-0.6B": (
        qwen3(1024, 3072, 28, 16, tied=True),
        (1024, 3072, 28, 16, 128, True, None, 0.60),
    ),
    "Qwen3-1.7B": (
        qwen3(2048, 6144, 28, 16, tied=True),
        (2048, 6144, 28, 16, 128, True, None, 1.72),
    ),
    "Qwen3-4B": (
        qwen3(2560, 9728, 36, 32, tied=True),
        (2560, 9728, 36, 32, 128, True, None, 4.02),
    ),
    "Qwen3-8B": (
        qwen3(4096, 12288, 36, 32, tied=False),
        (4096, 12288, 36, 32, 128, False, None, 8.19),
    ),
    "Qwen3-14B": (
        qwen3(5120, 17408, 40, 40, tied=False),
        (5120, 17408, 40, 40, 128, False, None, 14.77),
    ),
    "Qwen3-32B": (
        qwen3(5120, 25600, 64, 64, tied=False),
        (5120, 25600, 64, 64, 128, False, None, 32.76),
    ),
}


def of_transformers_5(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration as transformers 5 writes it."""
    config = dict(config)
    scaling, theta = config.pop("rope_scaling"), config.pop("rope_theta")
    config["rope_parameters"] = {**(scaling or {"rope_type": "default"}), "rope_theta": theta}
    config["dtype"] = config.pop("torch_dtype")
    if config["model_type"] == "qwen3":
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
        config["pad_token_id"] = None
    return config


@pytest.mark.parametrize("name", PUBLISHED)
def test_public_targets_are_read(name: str) -> None:
    published, (hidden, inner, layers, heads, head_dim, tied, factor, billions) = PUBLISHED[name]
    config = DecoderConfig.from_hf(published)

    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (
        hidden,
        inner,
        layers,
    )
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (heads, 8, head_dim)
    assert config.tie_word_embeddings == tied
    is_llama = name.startswith("Llama")
    assert config.qk_norm == (not is_llama)
    assert not config.attention_bias
    assert config.rope_theta == (5e5 if is_llama else 1e6)
    assert config.rms_norm_eps == (1e-5 if is_llama else 1e-6)
    assert config.max_position_embeddings == (131072 if is_llama else 40960)
    assert config.eos_token_ids == ((128001, 128008, 128009) if is_llama else (151645,))
    expected = None if factor is None else RopeScaling(factor, 1.0, 4.0, 8192)
    assert config.rope_scaling == expected
    assert weights_of(config) / 1e9 == pytest.approx(billions, abs=0.006)
    assert DecoderConfig.from_hf(of_transformers_5(published)) == config


def weights_of(config: DecoderConfig) -> int:
    """Number of weights, counted apart from the code that names them."""
    width = config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    layer = config.hidden_size * (width + 3 * config.intermediate_size + 2)
    layer += 2 * config.head_dim * config.qk_norm
    tables = 1 if config.tie_word_embeddings else 2
    return (
        config.num_layers * layer
        + config.hidden_size
        + tables * config.vocab_size * config.hidden_size
    )


def test_the_generation_config_adds_stop_tokens() -> None:
    published = PUBLISHED["Qwen3-8B"][0]
    config = DecoderConfig.from_hf(published, {"eos_token_id": [151645, 151643]})
    assert config.eos_token_ids == (151645, 151643)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 36}, "layers other than full_attention"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of the head"),
        ({"rope_parameters": [1]}, "must be an object"),
        ({"head_dim": 127}, "must be even"),
        ({"eos_token_id": {"a": 1}}, "not a token id"),
    ],
)
def test_relatives_that_compute_something_else_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DecoderConfig.from_hf({**PUBLISHED["Qwen3-8B"][0], **changes})


def test_rotations_are_float32_and_exact_far_out() -> None:
    """In bfloat16 the angle at position 100,000 would be off by whole turns."""
    config = DecoderConfig.from_hf(PUBLISHED["Llama-3.1-8B-Instruct"][0])
    cos, _ = rotary_tables(config, jnp.array([100_000]))
    assert cos.dtype == jnp.float32
    # The slowest frequency, by hand: theta ** (-126 / 128), slowed eight times.
    angle = 100_000 * 500_000.0 ** (-126 / 128) / 8
    assert float(cos[0, -1]) == pytest.approx(float(jnp.cos(jnp.float32(angle))), abs=1e-4)
