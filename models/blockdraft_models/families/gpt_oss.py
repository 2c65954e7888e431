"""gpt-oss (arXiv 2508.10925): experts in MXFP4, sinks, and a window in every second layer."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from blockdraft_models.families.family import Family, Published, count, windows
from blockdraft_models.families.tensors import Cut, LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    layers = count(config, "num_hidden_layers")
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    return {
        "attention_sinks": True,
        "windows": windows({**config, "layer_types": config["layer_types"] or kinds}),
        "activation": "clamped",
        "mlp_bias": True,
        "num_experts": count(config, "num_local_experts"),
        "experts_per_token": count(config, "num_experts_per_tok"),
    }


def _layer(names: LayerNames) -> Iterator[TensorName]:
    config = names.config
    hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_experts
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention()
    yield names("attention.sinks", "self_attn.sinks", "attn_sinks.weight", (config.num_heads,))
    yield names.norm("mlp_norm", "post_attention_layernorm", "post_attention_norm")
    stored, ggml = "mlp.router", "ffn_gate_inp"
    yield names("mlp.router", f"{stored}.weight", f"{ggml}.weight", (count, hidden))
    yield names("mlp.router_bias", f"{stored}.bias", f"{ggml}.bias", (count,))
    expert_names = partial(names, of_experts=True)
    for place, name in enumerate(("gate", "up")):
        # Their columns alternate.
        cut = partial(Cut, start=place, count=inner, size=2 * inner, step=2)
        stored, ggml = "mlp.experts.gate_up_proj", f"ffn_{name}_exps"
        weight = f"mlp.{name}.weight", stored, f"{ggml}.weight"
        yield names.expert(*weight, in_out=True, cut=cut(1))
        yield expert_names(
            f"mlp.{name}.bias", f"{stored}_bias", f"{ggml}.bias", (count, inner), cut=cut(0)
        )
    stored, ggml = "mlp.experts.down_proj", "ffn_down_exps"
    yield names.expert("mlp.down.weight", stored, f"{ggml}.weight", in_out=True)
    yield expert_names("mlp.down.bias", f"{stored}_bias", f"{ggml}.bias", (count, hidden))


GPT_OSS = Family(
    "gpt_oss",
    _fields,
    _layer,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "attention_bias": True,
        "sliding_window": 128,
        "layer_types": None,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
    },
    only={"swiglu_limit": 7.0, "swiglu_alpha": 1.702},
)
