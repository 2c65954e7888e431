"""Gemma 4, text only: layers without a window have heads of their own width and number.

26B-A4B has experts beside each layer's MLP.
"""

import math
from collections.abc import Iterator
from typing import Any

from blockdraft_models.diffusion import NoiseDiffusion
from blockdraft_models.families.family import (
    Family,
    Published,
    count,
    head_dim,
    number,
    ropes_by_kind,
    section,
    windows,
)
from blockdraft_models.families.gemma3 import gemma_layer
from blockdraft_models.families.tensors import Cut, LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    layers = count(config, "num_hidden_layers")
    kinds = ["sliding" if (layer + 1) % 6 else "full" for layer in range(layers)]
    kinds = config["layer_types"] or [f"{kind}_attention" for kind in kinds]
    # The last one has none, whatever the file says.
    of_layers = windows({**config, "layer_types": [*kinds[:-1], "full_attention"]})
    if config["use_bidirectional_attention"] == "all":  # "vision" is of images
        raise ValueError("use_bidirectional_attention 'all' is not supported")
    size = count(config, "hidden_size_per_layer_input")
    if size and config["vocab_size_per_layer_input"] != config["vocab_size"]:
        raise ValueError("vocab_size_per_layer_input other than vocab_size is not supported")
    sizes, cap = _global_sizes(config, of_layers), config["final_logit_softcapping"]
    local_theta = number(config, "rope_theta")
    return {
        **ropes_by_kind({**config, "head_dim": sizes["global_head_dim"]}, local_theta),
        **sizes,
        "qk_norm": True,
        "value_norm": True,
        "wide_norms": True,
        "output_norms": True,
        "output_scales": True,
        "windows": of_layers,
        "query_scale": math.sqrt(head_dim(config)),
        "embedding_scale": math.sqrt(count(config, "hidden_size")),
        "activation": "gelu_tanh",
        "logit_cap": None if cap is None else float(cap),
        "values_are_keys": bool(config["attention_k_eq_v"]),
        "layer_embedding_size": size,
        "shared_kv_layers": count(config, "num_kv_shared_layers"),
        "double_mlp": bool(config["use_double_wide_mlp"]),
        **(_experts(config) if config["enable_moe_block"] else {}),
    }


def _experts(config: Published) -> dict[str, Any]:
    return {
        "num_experts": count(config, "num_experts"),
        "experts_per_token": count(config, "top_k_experts"),
        "parallel_expert_size": count(config, "moe_intermediate_size"),
    }


def _global_sizes(config: Published, of_layers: tuple[int, ...]) -> dict[str, Any]:
    """Read the heads of layers without a window; files of transformers 5 list those layers."""
    sizes: Published = {"head_dim": count(config, "global_head_dim")}
    if config["attention_k_eq_v"] and config["num_global_key_value_heads"]:
        sizes = {**sizes, "num_key_value_heads": config["num_global_key_value_heads"]}
    by_layer = section(config, "per_layer_config")
    if by_layer:
        sizes = next(iter(by_layer.values()))
        expected = {str(layer): sizes for layer, window in enumerate(of_layers) if not window}
        if by_layer != expected or set(sizes) - {"head_dim", "num_key_value_heads"}:
            raise ValueError("per_layer_config other than of heads without a window")
    sizes = {**config, **sizes}
    kv_heads = count(sizes, "num_key_value_heads")
    return {"global_head_dim": count(sizes, "head_dim"), "global_kv_heads": kv_heads}


def _layer(names: LayerNames) -> Iterator[TensorName]:
    yield from gemma_layer(names)
    hidden, size = names.config.hidden_size, names.config.layer_embedding_size
    if size:
        for ours, theirs, ggml, shape in (
            ("gate.weight", "per_layer_input_gate", "inp_gate", (size, hidden)),
            ("projection.weight", "per_layer_projection", "proj", (hidden, size)),
            ("norm.scale", "post_per_layer_input_norm", "post_norm", (hidden,)),
        ):
            yield names(f"side_input.{ours}", f"{theirs}.weight", f"{ggml}.weight", shape)
    if names.config.num_experts:
        yield from _expert_names(names)
    yield names("output_scale", "layer_scalar", "layer_output_scale.weight", (1,))
    if isinstance(names.config.diffusion, NoiseDiffusion):
        yield names.elsewhere("text_scale", "encoder.language_model", "layer_scalar", (1,))


def _expert_names(names: LayerNames) -> Iterator[TensorName]:
    config = names.config
    hidden, inner, count = config.hidden_size, config.parallel_expert_size, config.num_experts
    yield names("experts.router_norm.scale", "router.scale", "ffn_gate_inp.scale", (hidden,))
    stored = "router.proj.weight", "ffn_gate_inp.weight"
    yield names("experts.experts.router", *stored, (count, hidden))
    yield names("experts.experts.scale", "router.per_expert_scale", "ffn_down_exps.scale", (count,))
    for ours, theirs, ggml in (
        ("norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("output_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ("mlp_output_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ):
        yield names.norm(f"experts.{ours}", theirs, ggml)
    for name, together, cut in (
        ("gate", "gate_up", Cut(0, 0, inner, 2 * inner)),
        ("up", "gate_up", Cut(0, inner, inner, 2 * inner)),
        ("down", "down", None),
    ):
        stored = f"experts.{together}_proj", f"ffn_{name}_exps.weight"
        yield names.expert(f"experts.experts.{name}.weight", *stored, cut=cut)


def _diffusion(config: Published) -> dict[str, Any]:
    """Read what DiffusionGemma has further; its generation says how canvases are denoised."""
    generation = config["generation_config"]
    sampler = section(generation, "sampler_config")
    published = (
        ("most_steps", count, generation, "max_denoising_steps"),
        ("entropy_bound", number, sampler, "entropy_bound"),
        ("last_temperature", number, generation, "t_min"),
        ("first_temperature", number, generation, "t_max"),
        ("stable_steps", count, generation, "stability_threshold"),
        ("least_entropy", number, generation, "confidence_threshold"),
    )
    sizes = count(config, "canvas_length"), count(config, "vocab_size")
    options: dict[str, Any] = {
        name: read(values, key)
        for name, read, values, key in published
        if values.get(key) is not None
    }
    return {**_fields(config), "diffusion": NoiseDiffusion(*sizes, **options)}


GEMMA4 = Family(
    "gemma4_text",
    _fields,
    _layer,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": None,
        "per_layer_config": None,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_k_eq_v": False,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 1e4},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
        },
        "sliding_window": 512,
        "layer_types": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": None,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "num_experts": None,
        "top_k_experts": None,
        "moe_intermediate_size": None,
    },
    only={
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_scaling": None,
    },
)
DIFFUSION_GEMMA = Family(
    "diffusion_gemma_text",
    _diffusion,
    _layer,
    defaults={
        **GEMMA4.defaults,
        "canvas_length": 256,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "final_logit_softcapping": 30.0,
        "enable_moe_block": True,
    },
    only=GEMMA4.only,
)
