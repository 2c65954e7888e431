"""Reading configurations as published, and refusing what the decoder does not compute."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from tests.models.builders import LLAMA3_SCALING
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.rope import rotary_tables
from blockdraft_models.decoder.rope_scaling import (
    LinearScaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from blockdraft_models.families.published_config import (
    config_from_hf,
    config_to_hf,
)

# With fields that are not read, as in the files.
LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


@dataclass(frozen=True)
class Published:
    """A published target; the file of Llama 3.1 does not say the width of a head."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    head_dim: int
    tied: bool
    scaling_factor: float | None
    billions_of_weights: float

    def file(self) -> dict[str, Any]:
        return {
            **(LLAMA3 if self.scaling_factor else QWEN3),
            **({} if self.name == "Llama-3.1-8B-Instruct" else {"head_dim": self.head_dim}),
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "tie_word_embeddings": self.tied,
            "rope_scaling": self.scaling_factor
            and {
                "factor": self.scaling_factor,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
        }


PUBLISHED = (
    Published("Llama-3.1-8B-Instruct", 4096, 14336, 32, 32, 128, False, 8.0, 8.03),
    Published("Llama-3.2-1B-Instruct", 2048, 8192, 16, 32, 64, True, 32.0, 1.24),
    Published("Llama-3.2-3B-Instruct", 3072, 8192, 28, 24, 128, True, 32.0, 3.21),
    Published("Qwen3-0.6B", 1024, 3072, 28, 16, 128, True, None, 0.60),
    Published("Qwen3-1.7B", 2048, 6144, 28, 16, 128, True, None, 1.72),
    Published("Qwen3-4B", 2560, 9728, 36, 32, 128, True, None, 4.02),
    Published("Qwen3-8B", 4096, 12288, 36, 32, 128, False, None, 8.19),
    Published("Qwen3-14B", 5120, 17408, 40, 40, 128, False, None, 14.77),
    Published("Qwen3-32B", 5120, 25600, 64, 64, 128, False, None, 32.76),
)
LLAMA_3_1_8B, QWEN3_8B = PUBLISHED[0].file(), PUBLISHED[6].file()


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


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_public_targets_are_read(published: Published) -> None:
    config = config_from_hf(published.file())

    assert (config.hidden_size, config.intermediate_size) == (published.hidden, published.inner)
    assert (config.num_layers, config.num_heads) == (published.layers, published.heads)
    assert (config.num_kv_heads, config.head_dim) == (8, published.head_dim)
    assert config.tie_word_embeddings == published.tied
    is_llama = published.name.startswith("Llama")
    assert config.qk_norm == (not is_llama)
    assert not config.attention_bias
    assert config.rope_theta == (5e5 if is_llama else 1e6)
    assert config.rms_norm_eps == (1e-5 if is_llama else 1e-6)
    assert config.max_position_embeddings == (131072 if is_llama else 40960)
    assert config.eos_token_ids == ((128001, 128008, 128009) if is_llama else (151645,))
    factor = published.scaling_factor
    assert config.rope_scaling == (RopeScaling(factor, 1.0, 4.0, 8192) if factor else None)
    assert weights_of(config) / 1e9 == pytest.approx(published.billions_of_weights, abs=0.006)
    assert config_from_hf(of_transformers_5(published.file())) == config


def weights_of(config: DecoderConfig) -> int:
    """Number of weights, counted apart from the code that names them."""
    width = config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    layer = config.hidden_size * (width + 3 * config.intermediate_size + 2)
    layer += 2 * config.head_dim * config.qk_norm
    tables = (1 if config.tie_word_embeddings else 2) * config.vocab_size * config.hidden_size
    return config.num_layers * layer + config.hidden_size + tables


def test_stop_tokens_of_the_generation_config_win() -> None:
    assert config_from_hf(LLAMA_3_1_8B, {"eos_token_id": 5}).eos_token_ids == (5,)
    config = config_from_hf(QWEN3_8B, {"eos_token_id": [151645, 151643]})
    assert config.eos_token_ids == (151645, 151643)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"max_denoising_steps": "6"}, "max_denoising_steps must be a whole number"),
        ({"t_min": "0.4"}, "t_min must be a number"),
        ({"stability_threshold": 1.5}, "stability_threshold must be a whole number"),
        ({"sampler_config": {"entropy_bound": True}}, "entropy_bound must be a number"),
        ({"sampler_config": 3}, "sampler_config must be an object"),
        ({"t_min": 0.9, "t_max": 0.8}, "denoising at such temperatures"),
    ],
)
def test_denoising_of_other_values_is_refused(generation: Any, message: str) -> None:
    folder = Path(__file__).parents[2] / "golden/targets/diffusion-gemma"
    config, own = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("config", "generation_config")
    )
    assert config_from_hf(config, own).diffusion is not None
    with pytest.raises(ValueError, match=message):
        config_from_hf(config, {**own, **generation})


def test_qwen3_has_its_own_defaults() -> None:
    config = config_from_hf({**LLAMA_3_1_8B, "model_type": "qwen3", "hidden_size": 2048})
    assert config.qk_norm
    assert config.head_dim == 128


@pytest.mark.parametrize(
    ("family", "change", "windows"),
    [
        ("qwen2", {"max_window_layers": 2}, (0, 0, 64)),
        ("qwen3", {"max_window_layers": 3}, ()),
        ("qwen3", {}, ()),
        ("qwen3", {"max_window_layers": 0, "sliding_window": None}, ()),
        ("qwen2", {"layer_types": ["sliding_attention"] + 2 * ["full_attention"]}, (64, 0, 0)),
        # Its layers have no kinds.
        ("qwen3_moe", {"max_window_layers": 2}, (64, 64, 64)),
    ],
)
def test_qwens_first_layers_have_no_window(
    family: str, change: dict[str, Any], windows: tuple[int, ...]
) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    experts = experts if family == "qwen3_moe" else {}
    asked = {"use_sliding_window": True, "sliding_window": 64, "num_hidden_layers": 3}
    changed = {**QWEN3_8B, **experts, **asked, "model_type": family, **change}
    assert config_from_hf(changed).windows == windows


_ORIGINAL = "original_max_position_embeddings"
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 64,
    "long_factor": [8.0] * 64,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("family", "change", "fields"),
    [
        ("mistral", {}, {"windows": (4096,) * 36}),
        ("ministral", {"sliding_window": None}, {"windows": ()}),
        ("gemma3_text", {}, {"windows": (*[4096] * 5, 0) * 6, "local_rope_theta": 1e4}),
        ("gpt_oss", {}, {"windows": (128, 0) * 18, "rms_norm_eps": 1e-5, "rope_theta": 150_000.0}),
        (
            "gemma4_text",
            {"vocab_size_per_layer_input": 151936},
            {"global_head_dim": 512, "windows": (*[512] * 5, 0) * 6, "layer_embedding_size": 256},
        ),
        ("granite", {}, {"embedding_scale": 1.0, "query_scale": 128**0.5, "logit_divisor": 1.0}),
        ("olmo2", {}, {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "num_kv_heads": 32, "windows": ()}),
        ("olmo3", {}, {"max_position_embeddings": 2048, "windows": (), "local_rope_theta": None}),
        (
            "olmo3",
            {"rope_theta": 1e6, "sliding_window": 1024},
            {"windows": (1024, 1024, 1024, 0) * 9, "rope_theta": 1e6, "local_rope_theta": 5e5},
        ),
        ("phi3", {}, {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),
        ("smollm3", {}, {"rotated": (True, True, True, False) * 9, "rope_theta": 2e6}),
        ("smollm3", {"no_rope_layers": [1] * 40}, {"rotated": (), "windows": ()}),
        (
            "smollm3",
            {"use_sliding_window": True, "sliding_window": 64, "no_rope_layer_interval": 6},
            {"windows": (0, 0, 0, 0, 0, 64) * 6},
        ),
        ("qwen2", {}, {"max_position_embeddings": 32768, "num_kv_heads": 32}),
    ],
)
def test_what_a_file_lacks_is_as_in_transformers(
    family: str, change: dict[str, Any], fields: dict[str, Any]
) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    bare = {name: QWEN3_8B[name] for name in (*sizes, "num_attention_heads")}
    config = config_from_hf({**bare, "model_type": family, **change})
    assert {name: getattr(config, name) for name in fields} == fields


def test_gpt_oss_is_stretched_by_default() -> None:
    experts = {"num_local_experts": 4, "model_type": "gpt_oss"}
    scaling = YarnScaling(32.0, 32.0, 1.0, 4096, 0.1 * math.log(32) + 1, truncate=False)
    for change in ({}, {"rope_parameters": None, "rope_theta": 5e5}):
        config = {**LLAMA_3_1_8B, **experts, "rope_scaling": None, **change}
        assert config_from_hf(config).rope_scaling == scaling


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        # Older programs edit what transformers 5 has superseded.
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"factor": 1.0}},
            {"rope_scaling": LinearScaling(2.0), "rope_theta": 1e6},
        ),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 1.0},
                "original_max_position_embeddings": 8192,
            },
            {"rope_scaling": YarnScaling(4.0, 32.0, 1.0, 8192, 1.0)},
        ),
        # Publishers have users add the scaling and leave the length alone.
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, _ORIGINAL: 32768}},
            {"max_position_embeddings": 131_072},
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 1.0, _ORIGINAL: 32768}},
            {"max_position_embeddings": 40960},
        ),
        ({"rope_scaling": LONGROPE}, {"max_position_embeddings": 8192}),
    ],
)
def test_rotations_are_read_wherever_they_stand(
    change: dict[str, Any], fields: dict[str, Any]
) -> None:
    config = config_from_hf({**QWEN3_8B, **change})
    assert {name: getattr(config, name) for name in fields} == fields


def test_rotations_are_float32_and_exact_far_out() -> None:
    """In bfloat16 the angle at position 100,000 would be off by whole turns."""
    cos, _ = rotary_tables(config_from_hf(LLAMA_3_1_8B), jnp.array([100_000]))
    assert cos.dtype == jnp.float32
    # The slowest frequency, by hand: theta ** (-126 / 128), slowed eight times.
    angle = 100_000 * 500_000.0 ** (-126 / 128) / 8
    assert float(cos[0, -1]) == pytest.approx(float(jnp.cos(jnp.float32(angle))), abs=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("scaling", [None, LLAMA3_SCALING])
def test_written_configs_read_back(kind: Any, scaling: RopeScaling | None) -> None:
    config = tiny_config(kind, rope_scaling=scaling, attention_bias=True)
    assert config_from_hf(json.loads(json.dumps(config_to_hf(config)))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        (
            {"use_sliding_window": True, "layer_types": ["linear_attention"] * 36},
            "layers of linear_attention",
        ),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": {"type": "llama3"}}, "lacks 'factor'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of the head"),
        ({"rope_parameters": [1]}, "must be an object"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"head_dim": 127}, "must be even"),
        ({"eos_token_id": {"a": 1}}, "not a token id"),
        ({"rope_theta": None}, "lacks 'rope_theta'"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a number"),
        ({"use_qk_clip": True}, "use_qk_clip in config.json is not supported"),
        ({"model_type": "phi3", "attention_bias": True}, "attention_bias in config.json"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "high_freq_factor": 4.0}},
            "high_freq_factor of rope scaling 'linear'",
        ),
    ],
)
def test_unsupported_hf_configs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_hf({**QWEN3_8B, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be positive"),
        ({"num_kv_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "must be even"),
        ({"rms_norm_eps": 0.0}, "must be positive"),
        ({"eos_token_ids": (260,)}, "outside the vocabulary"),
        ({"bos_token_id": -1}, "outside the vocabulary"),
        ({"windows": (8, 0)}, "windows of 2 layers, of 3"),
        ({"windows": (8, 4, 0)}, "several sizes"),
        ({"rotated": (True, False)}, "rotations of 2 layers, of 3"),
        ({"windows": (8, 8, 0), "shared_kv_layers": 1}, "the keys and values of none before them"),
        ({"shared_kv_layers": 3}, "the keys and values of none before them"),
        ({"shared_kv_layers": 1}, "shared keys of heads of one width"),
        ({"rotary_dim": 10}, "10 of 8 elements"),
        ({"rotary_dim": 5}, "5 of 8 elements"),
        ({"rope_scaling": LongRopeScaling((1.0,), 1.0)}, "1 factors for 4 frequencies"),
        (
            {"rope_scaling": YarnScaling(4.0, 32.0, 1.0, 64, 1.0), "rope_theta": 1.0},
            "rope_theta above 1",
        ),
        ({"num_experts": 4, "experts_per_token": 5}, "5 experts of 4"),
        ({"num_experts": 2**40, "experts_per_token": 1}, "at most 1024"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**change)


@pytest.mark.parametrize("values", [(0.5, 1.0, 4.0, 64), (8.0, 4.0, 4.0, 64), (8.0, 1.0, 4.0, 0)])
def test_impossible_scalings_are_refused(values: tuple[float, float, float, int]) -> None:
    with pytest.raises(ValueError, match="rope scaling"):
        RopeScaling(*values)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 0.5},
        {"type": "yarn", "factor": 4.0, "beta_slow": 40.0},
        {"type": "yarn", "factor": 4.0, "attention_factor": -1.0},
        {"type": "yarn", "factor": 4.0, "mscale": 1.0},
        {"type": "longrope", "short_factor": [0.0], "original_max_position_embeddings": 64},
    ],
)
def test_impossible_published_scalings_are_refused(scaling: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rope scaling"):
        config_from_hf({**QWEN3_8B, "rope_scaling": scaling})


def test_canonical_json_describes_the_function_only() -> None:
    config = tiny_config()
    renamed = dataclasses.replace(
        config, name="other", bos_token_id=None, eos_token_ids=(), max_position_embeddings=99
    )
    assert renamed.canonical_json() == config.canonical_json()
    assert tiny_config(rope_theta=1e5).canonical_json() != config.canonical_json()
    assert json.loads(config.canonical_json())["num_layers"] == 3
