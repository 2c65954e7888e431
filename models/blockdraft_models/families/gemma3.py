"""Gemma 3, text only (arXiv 2503.19786)."""

import math
from collections.abc import Iterator
from typing import Any

from blockdraft_models.families.family import (
    Family,
    Published,
    count,
    refuse,
    rope,
    section,
    windows,
)
from blockdraft_models.families.tensors import LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    if config.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise ValueError(f"hidden_activation {config['hidden_activation']!r} is not supported")
    refuse(config, "final_logit_softcapping", "attn_logit_softcapping")
    refuse(config, "use_bidirectional_attention")
    head_dim = count(config, "head_dim", 256)
    if "layer_types" not in config:
        # Every so many layers, one sees everything.
        every = count(config, "sliding_window_pattern", 6)
        layers = count(config, "num_hidden_layers")
        kinds = ["full" if layer % every == every - 1 else "sliding" for layer in range(layers)]
        config = {**config, "layer_types": [f"{kind}_attention" for kind in kinds]}
    parameters = section(config, "rope_parameters")
    if "full_attention" in parameters:
        theta, scaling = rope(config, section(parameters, "full_attention"))
        local = rope(config, section(parameters, "sliding_attention"))[0]
    else:
        theta, scaling = rope({"rope_theta": 1e6, **config})
        local = float(config.get("rope_local_base_freq", 10000.0))
    scalar = float(config.get("query_pre_attn_scalar", 256))
    return {
        "num_heads": count(config, "num_attention_heads", 8),
        "num_kv_heads": count(config, "num_key_value_heads", 4),
        "head_dim": head_dim,
        "vocab_size": count(config, "vocab_size", 262_208),
        "max_position_embeddings": count(config, "max_position_embeddings", 131_072),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", True)),
        "qk_norm": True,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "local_rope_theta": local,
        "windows": windows(config),
        "query_scale": math.sqrt(head_dim / scalar),
        "norm_offset": 1.0,
        "output_norms": True,
        "embedding_scale": math.sqrt(count(config, "hidden_size")),
        "activation": "gelu_tanh",
    }


def _layer(names: LayerNames) -> Iterator[TensorName]:
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention()
    yield names.norm("attention_output_norm", "post_attention_layernorm", "post_attention_norm")
    yield names.norm("mlp_norm", "pre_feedforward_layernorm", "ffn_norm")
    yield from names.mlp()
    yield names.norm("mlp_output_norm", "post_feedforward_layernorm", "post_ffw_norm")


GEMMA3 = Family("gemma3_text", _fields, _layer)
