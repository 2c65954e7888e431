"""Phi-4 and Phi-4-mini ("phi3"): Llama with query, key and value in one matrix, gate and up too."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from blockdraft_models.families.family import Family, Published, rope, rope_parameters, windows
from blockdraft_models.families.tensors import Cut, LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    parameters = rope_parameters(config)
    if parameters.get("rope_type", parameters.get("type")) in ("su", "yarn"):
        parameters = {**parameters, "rope_type": "longrope"}  # its first names
    return {**rope(config, parameters), "windows": windows(config, "sliding_attention")}


def _layer(names: LayerNames) -> Iterator[TensorName]:
    config = names.config
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    start, rows = 0, partial(Cut, 0, size=q_width + 2 * kv_width)
    for name, width in (("query", q_width), ("key", kv_width), ("value", kv_width)):
        stored = "self_attn.qkv_proj.weight", "attn_qkv.weight"
        part = rows(start=start, count=width)
        yield names(f"attention.{name}.weight", *stored, (width, hidden), cut=part)
        start += width
    stored = "self_attn.o_proj.weight", "attn_output.weight"
    yield names("attention.output.weight", *stored, (hidden, q_width))
    yield names.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")
    for place, name in enumerate(("gate", "up")):
        stored = "mlp.gate_up_proj.weight", "ffn_up.weight"
        part = Cut(0, place * inner, inner, 2 * inner)
        yield names(f"mlp.{name}.weight", *stored, (inner, hidden), cut=part)
    yield names("mlp.down.weight", "mlp.down_proj.weight", "ffn_down.weight", (hidden, inner))


PHI3 = Family(
    "phi3",
    _fields,
    _layer,
    defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    },
)
