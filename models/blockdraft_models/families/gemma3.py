"""Gemma 3, text only (arXiv 2503.19786)."""

import math
from collections.abc import Iterator
from typing import Any

from blockdraft_models.decoder.rope_scaling import LinearScaling
from blockdraft_models.families.family import (
    Family,
    Published,
    count,
    head_dim,
    number,
    section,
    whole_rope,
    windows,
)
from blockdraft_models.families.tensors import LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    # The last of every so many layers has no window.
    every, layers = count(config, "sliding_window_pattern"), count(config, "num_hidden_layers")
    kinds = ["full" if layer % every == every - 1 else "sliding" for layer in range(layers)]
    kinds = config["layer_types"] or [f"{kind}_attention" for kind in kinds]
    return {
        **_ropes(config),
        "qk_norm": True,
        "windows": windows({**config, "layer_types": kinds}),
        "query_scale": math.sqrt(head_dim(config) / number(config, "query_pre_attn_scalar")),
        "norm_offset": 1.0,
        "output_norms": True,
        "embedding_scale": math.sqrt(count(config, "hidden_size")),
        "activation": "gelu_tanh",
    }


def _ropes(config: Published) -> dict[str, Any]:
    """Read the rotations of layers without and with a window; the former have `rope_scaling`."""
    by_kind = section(config, "rope_parameters")
    if set(by_kind) - {"full_attention", "sliding_attention"}:
        raise ValueError("rope_parameters other than by kind of attention are not supported")
    scaling = section(config, "rope_scaling")
    everywhere = whole_rope(config, {**section(by_kind, "full_attention"), **scaling})
    local = whole_rope(
        {**config, "rope_theta": config["rope_local_base_freq"]},
        section(by_kind, "sliding_attention"),
    )
    if not isinstance(everywhere["rope_scaling"], LinearScaling | None) or local["rope_scaling"]:
        raise ValueError("rope scaling of Gemma 3 is supported only if linear, and without window")
    return {**everywhere, "local_rope_theta": local["rope_theta"]}


def _layer(names: LayerNames) -> Iterator[TensorName]:
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention()
    yield names.norm("attention_output_norm", "post_attention_layernorm", "post_attention_norm")
    yield names.norm("mlp_norm", "pre_feedforward_layernorm", "ffn_norm")
    yield from names.mlp()
    yield names.norm("mlp_output_norm", "post_feedforward_layernorm", "post_ffw_norm")


GEMMA3 = Family(
    "gemma3_text",
    _fields,
    _layer,
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
