"""Gemma 3, text only (arXiv 2503.19786)."""

import math
from collections.abc import Iterator
from typing import Any

from blockdraft_models.families.family import (
    Family,
    Published,
    count,
    head_dim,
    number,
    ropes_by_kind,
    windows,
)
from blockdraft_models.families.tensors import LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    # The last of every so many layers has no window.
    every, layers = count(config, "sliding_window_pattern"), count(config, "num_hidden_layers")
    kinds = ["full" if layer % every == every - 1 else "sliding" for layer in range(layers)]
    kinds = config["layer_types"] or [f"{kind}_attention" for kind in kinds]
    return {
        **ropes_by_kind(config, number(config, "rope_local_base_freq")),
        "qk_norm": True,
        "windows": windows({**config, "layer_types": kinds}),
        "query_scale": math.sqrt(head_dim(config) / number(config, "query_pre_attn_scalar")),
        "norm_offset": 1.0,
        "output_norms": True,
        "embedding_scale": math.sqrt(count(config, "hidden_size")),
        "activation": "gelu_tanh",
    }


def gemma_layer(names: LayerNames) -> Iterator[TensorName]:
    """Yield the weights of a layer with norms before and behind attention and MLP."""
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention()
    yield names.norm("attention_output_norm", "post_attention_layernorm", "post_attention_norm")
    yield names.norm("mlp_norm", "pre_feedforward_layernorm", "ffn_norm")
    yield from names.mlp()
    yield names.norm("mlp_output_norm", "post_feedforward_layernorm", "post_ffw_norm")


GEMMA3 = Family(
    "gemma3_text",
    _fields,
    gemma_layer,
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "layer_types": None,
    },
    only={
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
)
