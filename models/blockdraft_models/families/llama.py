"""Llama 3.x and SmolLM2 ("llama"), and Mistral, which adds windows."""

from collections.abc import Iterator
from typing import Any

from blockdraft_models.families.family import Family, Published, windows
from blockdraft_models.families.tensors import LayerNames, TensorName


def _llama(config: Published) -> dict[str, Any]:
    if set(config["layer_types"] or ()) - {"full_attention"}:
        raise ValueError("layers other than full_attention are not supported")
    return {}


def _mistral(config: Published) -> dict[str, Any]:
    return {"windows": windows(config, "sliding_attention")}


def plain_layer(names: LayerNames, *, permuted: bool = False) -> Iterator[TensorName]:
    """Yield the weights of a layer with two norms, attention and one MLP."""
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from names.attention(permuted=permuted)
    yield names.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")
    yield from names.mlp()


def _permuted_layer(names: LayerNames) -> Iterator[TensorName]:
    return plain_layer(names, permuted=True)


LLAMA = Family(
    "llama",
    _llama,
    _permuted_layer,
    gguf="llama",
    defaults={"attention_bias": False, "layer_types": None},
)
# Their GGUF files say "llama", and so the fingerprint is that of one.
MISTRAL = Family(
    "mistral",
    _mistral,
    _permuted_layer,
    same_as=("ministral",),
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
        "layer_types": None,
    },
)
