"""Qwen2, Qwen3, Qwen3's mixture of experts (arXiv 2505.09388), and what denoises like them.

SDAR (arXiv 2510.06303) was made of Qwen3, Fast-dLLM v2 (arXiv 2509.26328) of Qwen2.5.
"""

from collections.abc import Iterator
from typing import Any

from blockdraft_models.diffusion import MaskDiffusion
from blockdraft_models.families.family import Family, Published, count, windows
from blockdraft_models.families.llama import plain_layer
from blockdraft_models.families.tensors import LayerNames, TensorName


def _windows(config: Published) -> tuple[int, ...]:
    # The windows of these configurations count only with this flag.
    if not config["use_sliding_window"]:
        return ()
    # Older files do not name the kinds of layers: the first `max_window_layers` have no window.
    kinds, full = config["layer_types"], count(config, "max_window_layers")
    if kinds is None:
        layers = range(count(config, "num_hidden_layers"))
        kinds = ["full_attention" if index < full else "sliding_attention" for index in layers]
    return windows({**config, "layer_types": kinds})


def _qwen2(config: Published) -> dict[str, Any]:
    # The model always has these biases, although its configuration does not say so.
    return {"attention_bias": True, "output_bias": False, "windows": _windows(config)}


def _qwen3(config: Published) -> dict[str, Any]:
    return {"qk_norm": True, "windows": _windows(config)}


def _qwen3_moe(config: Published) -> dict[str, Any]:
    # Both names are one setting.
    experts = "num_experts" if config["num_local_experts"] is None else "num_local_experts"
    return {
        # All of its layers have the window, whatever the file says of single layers.
        **_qwen3({**config, "layer_types": None, "max_window_layers": 0}),
        "intermediate_size": count(config, "moe_intermediate_size"),
        "num_experts": count(config, experts),
        "experts_per_token": count(config, "num_experts_per_tok"),
        "normalized_routing": bool(config["norm_topk_prob"]),
    }


def _sdar(config: Published) -> dict[str, Any]:
    length, mask = count(config, "block_size"), count(config, "mask_token_id")
    return {"diffusion": MaskDiffusion(length, length, mask, _SDAR_SHARE)}


def _fast_dllm(config: Published) -> dict[str, Any]:
    length, mask = count(config, "bd_size"), count(config, "mask_token_id")
    part = min(length, _FAST_DLLM_PART)
    diffusion = MaskDiffusion(length, part, mask, _FAST_DLLM_SHARE, shifted=True)
    return {**_qwen2(config), "diffusion": diffusion}


def _sparse_layer(names: LayerNames) -> Iterator[TensorName]:
    shape = names.config.num_experts, names.config.hidden_size
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention()
    yield names.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")
    yield names("mlp.router", "mlp.gate.weight", "ffn_gate_inp.weight", shape)
    for name in ("gate", "up", "down"):
        stored = f"mlp.experts.{{}}.{name}_proj.weight", f"ffn_{name}_exps.weight"
        yield names.expert(f"mlp.{name}.weight", *stored)


# Of the published programs, as no configuration has them: the share above which tokens are taken,
# and the length of the parts in which Fast-dLLM fills a canvas.
_SDAR_SHARE, _FAST_DLLM_SHARE, _FAST_DLLM_PART = 0.85, 0.9, 8

_WINDOWS: Published = {
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_BY_LAYER: Published = {"num_key_value_heads": 32, "max_window_layers": 28, "layer_types": None}

QWEN2 = Family("qwen2", _qwen2, plain_layer, gguf="qwen2", defaults={**_WINDOWS, **_BY_LAYER})
QWEN3 = Family(
    "qwen3",
    _qwen3,
    plain_layer,
    gguf="qwen3",
    defaults={**_WINDOWS, **_BY_LAYER, "head_dim": 128, "attention_bias": False},
)
QWEN3_MOE = Family(
    "qwen3_moe",
    _qwen3_moe,
    _sparse_layer,
    gguf="qwen3moe",
    defaults={
        **_WINDOWS,
        "attention_bias": False,
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_local_experts": None,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    only={"decoder_sparse_step": 1},
)
_SDAR: Published = {"block_size": 4, "mask_token_id": 151669}
SDAR = Family(
    "sdar",
    lambda config: {**_qwen3(config), **_sdar(config)},
    plain_layer,
    defaults={**QWEN3.defaults, **_SDAR},
)
SDAR_MOE = Family(
    "sdar_moe",
    lambda config: {**_qwen3_moe(config), **_sdar(config)},
    _sparse_layer,
    defaults={**QWEN3_MOE.defaults, **_SDAR},
    only=QWEN3_MOE.only,
)
FAST_DLLM = Family(
    "Fast_dLLM_Qwen",
    _fast_dllm,
    plain_layer,
    defaults={**QWEN2.defaults, "bd_size": 32, "mask_token_id": 151665},
)
