"""OLMo 2 and OLMo 3 (arXiv 2501.00656): norms behind attention and MLP instead of before them."""

from collections.abc import Iterator
from typing import Any

from blockdraft_models.families.family import Family, Published, count, ropes_by_kind, windows
from blockdraft_models.families.tensors import LayerNames, TensorName

# Layers with a window do not take part in what `rope_theta` of a file says, nor in its scaling.
_LOCAL_THETA = 500_000.0


def _olmo2(config: Published) -> dict[str, Any]:
    return {
        "qk_norm": True,
        "whole_qk_norm": True,
        "wide_norms": True,
        "input_norms": False,
        "output_norms": True,
    }


def _olmo3(config: Published) -> dict[str, Any]:
    layers, ropes = count(config, "num_hidden_layers"), ropes_by_kind(config, _LOCAL_THETA)
    if ropes["rope_scaling"] is None and ropes["local_rope_theta"] == ropes["rope_theta"]:
        del ropes["local_rope_theta"]
    kinds = ["sliding" if (layer + 1) % 4 else "full" for layer in range(layers)]
    kinds = config["layer_types"] or [f"{kind}_attention" for kind in kinds]
    return {**_olmo2(config), **ropes, "windows": windows({**config, "layer_types": kinds})}


def _layer(names: LayerNames) -> Iterator[TensorName]:
    yield from names.attention()
    yield names.norm("attention_output_norm", "post_attention_layernorm", "post_attention_norm")
    yield from names.mlp()
    yield names.norm("mlp_output_norm", "post_feedforward_layernorm", "post_ffw_norm")


_DEFAULTS: Published = {"rms_norm_eps": 1e-5, "attention_bias": False}

OLMO2 = Family("olmo2", _olmo2, _layer, defaults=_DEFAULTS)
OLMO3 = Family(
    "olmo3",
    _olmo3,
    _layer,
    defaults={
        **_DEFAULTS,
        "rope_theta": 500_000.0,
        "sliding_window": 4096,
        "layer_types": None,
    },
)
