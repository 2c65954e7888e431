"""Any legal `config.json` of any family is read, computes, and has drafters."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.builders import random_decoder
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.models.tiny import decoder_tensors

from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.rope_scaling import ProportionalScaling, RopeScaling
from blockdraft_models.families.published_config import config_from_hf, config_to_hf
from blockdraft_models.families.table import FAMILIES, family_of_model_type

TOKENS, VOCAB = 6, 64
ORIGINAL = "original_max_position_embeddings"
# The sizes are few, as each operation compiles for each.
EVERYWHERE: dict[str, list[Any]] = {
    "vocab_size": [VOCAB],
    "hidden_size": [32],
    "intermediate_size": [48],
    "num_attention_heads": [4],
    "rms_norm_eps": [1e-6, 1e-5],
    "tie_word_embeddings": [False, True],
    "max_position_embeddings": [32, 4096],
    "bos_token_id": [None, 1],
    "eos_token_id": [2, [2, 3]],
    "torch_dtype": ["bfloat16"],
}
HEADS: dict[str, list[Any]] = {"num_key_value_heads": [1, 2], "head_dim": [8]}
# Where a file says how heads are rotated, and how they may be.
THETAS: list[dict[str, Any]] = [
    {},
    {"rope_theta": 500_000.0},
    {"rope_parameters": {"rope_theta": 1e6}},
]
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}}
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
SCALINGS: list[dict[str, Any]] = [
    *THETAS,
    LINEAR,
    YARN,
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 1e6},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e5, **LLAMA3}},
]
WINDOW: dict[str, list[Any]] = {"sliding_window": [2, 4]}
BIAS: dict[str, list[Any]] = {"attention_bias": [False, True]}
FLAGGED: dict[str, list[Any]] = {
    **WINDOW,
    "use_sliding_window": [False, True],
    "max_window_layers": [0, 1, 28],
}
CANVAS: dict[str, list[Any]] = {"block_size": [2, 4], "mask_token_id": [60]}
EXPERTS: dict[str, list[Any]] = {"num_experts": [4], "num_experts_per_tok": [1, 2]}
NORMALIZED: dict[str, list[Any]] = {"norm_topk_prob": [False, True]}
STATES: dict[str, list[Any]] = {
    **HEADS,
    "partial_rotary_factor": [0.25, 0.5, 1.0],
    "linear_num_key_heads": [2],
    "linear_num_value_heads": [4],
    "linear_key_head_dim": [8],
    "linear_value_head_dim": [8],
    "linear_conv_kernel_dim": [4],
    "full_attention_interval": [1, 2],
}
SHARED: dict[str, list[Any]] = {
    "moe_intermediate_size": [16],
    "shared_expert_intermediate_size": [0, 16],
}
ROUTED: dict[str, list[Any]] = {
    **NORMALIZED,
    "moe_intermediate_size": [16],
    "n_routed_experts": [4],
    "n_shared_experts": [0, 1],
    "num_experts_per_tok": [1, 2],
    "first_k_dense_replace": [0, 1, 9],
    "routed_scaling_factor": [1.0, 2.5],
    "n_group": [1, 2],
    "topk_group": [1],
}
LATENT: dict[str, list[Any]] = {
    **ROUTED,
    **BIAS,
    "kv_lora_rank": [16],
    "q_lora_rank": [None, 16],
    "qk_nope_head_dim": [8],
    "qk_rope_head_dim": [4],
    "v_head_dim": [8],
    "rope_interleave": [False, True],
}
MSCALE = {"rope_scaling": {**YARN["rope_scaling"], "mscale": 0.7, "mscale_all_dim": 1.0}}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [8.0] * 4}
FULL, SLIDING, LINEAR_LAYER = (f"{kind}_attention" for kind in ("full", "sliding", "linear"))
# Of each family its further keys, its rotations, and kinds of layers that may be listed.
Variety = tuple[dict[str, list[Any]], list[dict[str, Any]], tuple[str, ...]]
VARIETIES: dict[str, Variety] = {
    "llama": ({**HEADS, **BIAS}, SCALINGS, (FULL,)),
    "mistral": ({**HEADS, **WINDOW}, SCALINGS, (FULL, SLIDING)),
    "qwen2": ({"num_key_value_heads": [1, 2], **FLAGGED}, SCALINGS, (FULL, SLIDING)),
    "qwen3": ({**HEADS, **BIAS, **FLAGGED}, SCALINGS, (FULL, SLIDING)),
    "qwen3_moe": (
        {**HEADS, **BIAS, **FLAGGED, **EXPERTS, **NORMALIZED, "moe_intermediate_size": [16]},
        SCALINGS,
        (),
    ),
    "sdar": ({**HEADS, **BIAS, **CANVAS}, SCALINGS, ()),
    "sdar_moe": (
        {**HEADS, **BIAS, **CANVAS, **EXPERTS, **NORMALIZED, "moe_intermediate_size": [16]},
        SCALINGS,
        (),
    ),
    "Fast_dLLM_Qwen": (
        {"num_key_value_heads": [1, 2], "bd_size": [4, 8], "mask_token_id": [60]},
        SCALINGS,
        (),
    ),
    "qwen3_next": ({**STATES, **EXPERTS, **NORMALIZED, **SHARED}, THETAS, (FULL, LINEAR_LAYER)),
    "qwen3_5_text": (STATES, [*THETAS, LINEAR], (FULL, LINEAR_LAYER)),
    "qwen3_5_moe_text": ({**STATES, **EXPERTS, **SHARED}, THETAS, (FULL, LINEAR_LAYER)),
    "gemma3_text": (
        {
            **HEADS,
            **WINDOW,
            "sliding_window_pattern": [1, 2, 6],
            "query_pre_attn_scalar": [8, 64],
            "rope_local_base_freq": [10_000.0, 500.0],
        },
        [{}, LINEAR, {"rope_theta": 1e5}],
        (FULL, SLIDING),
    ),
    "gemma4_text": (
        {
            **HEADS,
            **WINDOW,
            "global_head_dim": [16],
            "num_global_key_value_heads": [None, 1, 2],
            "attention_k_eq_v": [False, True],
            "hidden_size_per_layer_input": [0, 6],
            "vocab_size_per_layer_input": [VOCAB],
            "final_logit_softcapping": [None, 30.0],
            "enable_moe_block": [False, True],
            "num_experts": [4],
            "top_k_experts": [2],
            "moe_intermediate_size": [16],
        },
        [{}],
        (FULL, SLIDING),
    ),
    "diffusion_gemma_text": (
        {
            **HEADS,
            **WINDOW,
            "canvas_length": [4],
            "global_head_dim": [16],
            "num_global_key_value_heads": [None, 1, 2],
            "num_experts": [4],
            "top_k_experts": [2],
            "moe_intermediate_size": [16],
        },
        [{}],
        (FULL, SLIDING),
    ),
    "gpt_oss": (
        {**HEADS, **WINDOW, "num_local_experts": [4], "num_experts_per_tok": [1, 2]},
        [{}, YARN],
        (FULL, SLIDING),
    ),
    "granite": (
        {
            **HEADS,
            **BIAS,
            "embedding_multiplier": [1.0, 12.0],
            "attention_multiplier": [1.0, 0.2],
            "residual_multiplier": [1.0, 0.22],
            "logits_scaling": [1.0, 8.0],
        },
        SCALINGS,
        (),
    ),
    "olmo2": ({"num_key_value_heads": [1, 2], **BIAS}, SCALINGS, ()),
    "olmo3": ({"num_key_value_heads": [1, 2], **WINDOW}, [{}, YARN], (FULL, SLIDING)),
    "phi3": (
        {"num_key_value_heads": [1, 2], "sliding_window": [None, 4], ORIGINAL: [16]},
        [*THETAS, {"rope_scaling": LONG}, {"partial_rotary_factor": 0.5}],
        (),
    ),
    "smollm3": (
        {
            **HEADS,
            **BIAS,
            **WINDOW,
            "no_rope_layer_interval": [1, 2, 4],
            "no_rope_layers": [None, [1, 0, 1, 0]],
            "use_sliding_window": [False, True],
        },
        SCALINGS,
        (FULL, SLIDING),
    ),
    "deepseek_v3": (LATENT, [*THETAS, YARN, MSCALE], ()),
    "glm4_moe_lite": (LATENT, [*THETAS, YARN, MSCALE], ()),
    "glm4_moe": (
        {**HEADS, **BIAS, **ROUTED, "use_qk_norm": [False, True]},
        [*THETAS, {"partial_rotary_factor": 1.0}],
        (),
    ),
    "minimax_m2": (
        {
            **HEADS,
            "num_local_experts": [4],
            "num_experts_per_tok": [1, 2],
            "rotary_dim": [4, 8],
        },
        THETAS,
        (),
    ),
}


@st.composite
def published(draw: Callable[[Any], Any], family: str) -> dict[str, Any]:
    """Draw a `config.json`."""
    keys, rotations, kinds = VARIETIES[family]
    layers = draw(st.integers(1, 2))
    config = {"model_type": family, "num_hidden_layers": layers, **draw(st.sampled_from(rotations))}
    config |= {key: draw(st.sampled_from(values)) for key, values in (EVERYWHERE | keys).items()}
    if "full_attention_interval" in config:  # one layer attends
        config["full_attention_interval"] = min(config["full_attention_interval"], layers)
    if kinds and draw(st.booleans()):
        of_layers = st.lists(st.sampled_from(kinds), min_size=layers - 1, max_size=layers - 1)
        config["layer_types"] = [*draw(of_layers), FULL]
    return config


def run(decoder: Decoder, tokens: np.ndarray, layers: tuple[int, ...]) -> list[np.ndarray]:
    """Return logits and captured outputs of two sequences; to compile would take a second."""
    positions = jnp.tile(jnp.arange(TOKENS, dtype=jnp.int32), 2)
    caches, attend = [None] * decoder.cache_count, DenseAttend(2, TOKENS)
    with jax.disable_jit():
        output = decoder(jnp.asarray(tokens.reshape(-1)), positions, caches, attend, layers)
        both = decoder.logits(output.hidden), output.captured
    return [np.asarray(rows).reshape(2, TOKENS, -1) for rows in both]


def is_in_reference(config: DecoderConfig) -> bool:
    scalings = RopeScaling, ProportionalScaling, type(None)
    more = config.num_experts, config.delta, config.latent, config.rotary_dim, config.norm_offset
    return isinstance(config.rope_scaling, scalings) and not any((*more, config.diffusion))


def as_transformers_5(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with defaults written out, and a rotation of all layers in one place.

    Those of four families have rotations by kind of layer there.
    """
    keys = family_of_model_type(config["model_type"]).keys
    written = {name: value for name, value in keys.items() if value is not None} | config
    if config["model_type"] not in ("gemma3_text", "gemma4_text", "diffusion_gemma_text", "olmo3"):
        theta, scaling = written.pop("rope_theta"), written.pop("rope_scaling", None)
        rotation = scaling or written.get("rope_parameters", {})
        written["rope_parameters"] = {"rope_theta": theta, **rotation}
    return {"dtype": written.pop("torch_dtype"), "of_a_later_version": None, **written}


def test_all_families_are_drawn() -> None:
    assert set(VARIETIES) == {family.model_type for family in FAMILIES}


@pytest.mark.parametrize("family", VARIETIES)
@given(data=st.data())
@settings(max_examples=14)
def test_any_target_is_read_computes_and_has_drafters(family: str, data: st.DataObject) -> None:
    config_json = data.draw(published(family))
    config = config_from_hf(config_json)

    assert config_from_hf(as_transformers_5(config_json)) == config
    is_written = family in ("llama", "qwen2", "qwen3") and not config.windows
    if is_written and isinstance(config.rope_scaling, RopeScaling | None):
        assert config_from_hf(json.loads(json.dumps(config_to_hf(config)))) == config
    drafter = DFlashConfig.default_for(config)
    again = DFlashConfig.from_hf(drafter.to_hf(), config, block_size=8)
    assert again.to_hf() == drafter.to_hf()

    decoder = random_decoder(config)
    tensors, params = decoder_tensors(decoder), params_from_decoder(decoder)
    assert len(tensors) == len(params)
    for name, weight in tensors:
        assert weight.shape == name.shape, name
    # Of the same tokens but for the last, which none before its canvas sees.
    tokens = np.tile(np.random.default_rng(0).integers(0, VOCAB, TOKENS), (2, 1))
    tokens[1, -1] = (tokens[0, -1] + 1) % VOCAB
    logits, features = run(decoder, tokens, drafter.target_layer_ids)
    assert features.shape[-1] == drafter.feature_width
    assert np.isfinite(features).all()
    assert np.isfinite(logits).all()
    before = slice((TOKENS - 1) // config.canvas_grain * config.canvas_grain)
    np.testing.assert_allclose(logits[1, before], logits[0, before], rtol=1e-4, atol=1e-5)
    assert (logits[1, -1] != logits[0, -1]).any()
    if is_in_reference(config):
        expected = ReferenceDecoder(config, params).logits(tokens[0])
        assert np.abs(logits[0] - expected).max() < 1e-4 * np.abs(expected).max()
