"""Experts chosen by sigmoids, as DeepSeek V3 has them, and the families that took them over."""

from collections.abc import Iterator
from typing import Any

from blockdraft_models.families.family import Family, Published, count, number, rope
from blockdraft_models.families.tensors import LayerNames, TensorName

ROUTING_DEFAULTS: Published = {
    **dict.fromkeys(("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")),
    **dict.fromkeys(("n_shared_experts", "mlp_layer_types")),
    "first_k_dense_replace": 1,
    "n_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    # Further layers that draft, which are left out; of training and of running in parallel.
    **dict.fromkeys(("num_nextn_predict_layers", "num_mtp_layers")),
    **dict.fromkeys(("aux_loss_alpha", "seq_aux", "ep_size")),
}
ROUTING_ONLY: Published = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}


def routing(config: Published) -> dict[str, Any]:
    """Return the experts, and the layers without, as fields of `DecoderConfig`."""
    inner = count(config, "moe_intermediate_size")
    return {
        "intermediate_size": inner,
        "dense_layers": _dense_layers(config),
        "dense_size": count(config, "intermediate_size"),
        "num_experts": count(config, "n_routed_experts"),
        "experts_per_token": count(config, "num_experts_per_tok"),
        "shared_expert_size": inner * count(config, "n_shared_experts"),
        "shared_expert_gate": False,
        "sigmoid_routing": True,
        "normalized_routing": bool(config["norm_topk_prob"]),
        "routing_scale": number(config, "routed_scaling_factor"),
        "routing_groups": count(config, "n_group", 1),
        "best_groups": count(config, "topk_group", 1),
    }


def _dense_layers(config: Published) -> int:
    layers, kinds = count(config, "num_hidden_layers"), config["mlp_layer_types"]
    if kinds is None:
        return min(count(config, "first_k_dense_replace"), layers)
    dense: int = kinds.count("dense")
    if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise ValueError("dense layers behind others are not supported")
    return dense


def experts_or_mlp(names: LayerNames) -> Iterator[TensorName]:
    """Yield the weights of a layer's experts and of the MLP beside them, or of its only MLP."""
    if not names.config.num_experts:
        yield from names.mlp()
        return
    hidden, inner = names.config.hidden_size, names.config.shared_expert_size
    yield from _router(names, "mlp.gate.weight", "mlp.gate.e_score_correction_bias")
    for name, shape in (
        ("gate", (inner, hidden)),
        ("up", (inner, hidden)),
        ("down", (hidden, inner)),
    ):
        stored = f"mlp.experts.{{}}.{name}_proj.weight", f"ffn_{name}_exps.weight"
        yield names.expert(f"mlp.{name}.weight", *stored)
        if inner:
            stored = f"mlp.shared_experts.{name}_proj.weight", f"ffn_{name}_shexp.weight"
            yield names(f"shared_expert.{name}.weight", *stored, shape)


def _router(names: LayerNames, weight: str, correction: str) -> Iterator[TensorName]:
    count = names.config.num_experts
    shape = count, names.config.hidden_size
    yield names("mlp.router", weight, "ffn_gate_inp.weight", shape)
    yield names("mlp.correction", correction, "exp_probs_b.bias", (count,), wide=True)


def _glm(config: Published) -> dict[str, Any]:
    return {
        **rope(config),
        **routing(config),
        "qk_norm": bool(config["use_qk_norm"]),
        "output_bias": False,
    }


def _minimax(config: Published) -> dict[str, Any]:
    kinds = config["attn_type_list"] or ()
    if set(kinds) - {1}:
        raise ValueError("attn_type_list other than of 1 is not supported")
    rotated = config["rotary_dim"]
    return {
        **rope(config),
        **({} if rotated is None else {"rotary_dim": count(config, "rotary_dim")}),
        "num_experts": count(config, "num_local_experts"),
        "experts_per_token": count(config, "num_experts_per_tok"),
        "sigmoid_routing": True,
        "qk_norm": True,
        "whole_qk_norm": True,
    }


def _attending(names: LayerNames) -> Iterator[TensorName]:
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention()
    yield names.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")


def _glm_layer(names: LayerNames) -> Iterator[TensorName]:
    yield from _attending(names)
    yield from experts_or_mlp(names)


def _minimax_layer(names: LayerNames) -> Iterator[TensorName]:
    yield from _attending(names)
    moe = "block_sparse_moe"
    yield from _router(names, f"{moe}.gate.weight", f"{moe}.e_score_correction_bias")
    for name, stored in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        theirs = f"{moe}.experts.{{}}.{stored}.weight"
        yield names.expert(f"mlp.{name}.weight", theirs, f"ffn_{name}_exps.weight")


GLM4_MOE = Family(
    "glm4_moe",
    _glm,
    _glm_layer,
    defaults={
        **ROUTING_DEFAULTS,
        "attention_bias": False,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "use_qk_norm": False,
    },
    only=ROUTING_ONLY,
)
MINIMAX_M2 = Family(
    "minimax_m2",
    _minimax,
    _minimax_layer,
    defaults={
        **dict.fromkeys(("num_local_experts", "num_experts_per_tok", "rotary_dim")),
        **dict.fromkeys(("attn_type_list", "router_jitter_noise", "mlp_intermediate_size")),
        **dict.fromkeys(("num_mtp_modules", "mtp_transformer_layers", "use_mtp")),
        **dict.fromkeys(("shared_moe_mode", "layernorm_mlp_beta", "sliding_window")),
        **dict.fromkeys(("layernorm_full_attention_beta", "layernorm_linear_attention_beta")),
        "max_position_embeddings": 196608,
        "rope_theta": 5000000.0,
    },
    only={
        "attention_bias": False,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_routing_bias": True,
    },
)
