"""DeepSeek V3, Kimi K2, Moonlight and GLM-4.7-Flash: latent attention and experts by sigmoids."""

import math
from collections.abc import Iterator
from typing import Any

from blockdraft_models.decoder.config import LatentSizes
from blockdraft_models.families.family import Family, Published, count, rope, rope_parameters
from blockdraft_models.families.routed_experts import (
    ROUTING_DEFAULTS,
    ROUTING_ONLY,
    experts_or_mlp,
    routing,
)
from blockdraft_models.families.tensors import Cut, LayerNames, TensorName


def _fields(config: Published) -> dict[str, Any]:
    parts = "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
    rank, plain, rotary, value = (count(config, name) for name in parts)
    interleaved = bool(config["rope_interleave"])
    sizes = LatentSizes(count(config, "q_lora_rank", 0), rank, plain, rotary, value, interleaved)
    # Scores are divided by the square root of the width of a key, which is another here.
    width, score_width = sizes.rank + sizes.rotary_dim, sizes.plain_dim + sizes.rotary_dim
    parameters, factor = _stretched(rope_parameters(config))
    return {
        **rope(config, parameters),
        **routing(config),
        "rotary_dim": sizes.rotary_dim,
        "latent": sizes,
        "head_dim": width,
        "num_kv_heads": 1,
        "query_scale": factor * math.sqrt(width / score_width),
    }


def _stretched(parameters: Published) -> tuple[Published, float]:
    """Return a rotation as other families write it, and the factor of scores beside it."""
    stretch = parameters.get("factor") or 1.0

    def length(mscale: float) -> float:
        return 0.1 * mscale * math.log(stretch) + 1.0 if stretch > 1 else 1.0

    scales = {name: parameters.get(name) or 0.0 for name in ("mscale", "mscale_all_dim")}
    rest = {name: parameters[name] for name in parameters if name not in scales}
    of_cosines, of_scores = scales.values()
    if of_cosines and of_scores:
        rest.setdefault("attention_factor", length(of_cosines) / length(of_scores))
    return rest, length(of_scores) ** 2 if of_scores else 1.0


def _layer(names: LayerNames) -> Iterator[TensorName]:
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    yield from _attention(names)
    yield names.norm("mlp_norm", "post_attention_layernorm", "ffn_norm")
    yield from experts_or_mlp(names)


def _attention(names: LayerNames) -> Iterator[TensorName]:
    config, sizes = names.config, names.config.latent
    assert sizes is not None
    hidden, heads, query_rank = config.hidden_size, config.num_heads, sizes.query_rank

    def linear(ours: str, theirs: str, ggml: str, shape: tuple[int, int]) -> Iterator[TensorName]:
        places = f"latent_attention.{ours}", f"self_attn.{theirs}", ggml
        biased = config.attention_bias and ours != "query"
        for kind, size in (("weight", shape), ("bias", shape[:1])):
            if kind == "weight" or biased:
                a, b, c = (f"{place}.{kind}" for place in places)
                yield names(a, b, c, size)

    def norm(ours: str, theirs: str, ggml: str, width: int) -> TensorName:
        return names.norm(f"latent_attention.{ours}", f"self_attn.{theirs}", ggml, width)

    queries = heads * (sizes.plain_dim + sizes.rotary_dim)
    if query_rank:
        yield from linear("query_down", "q_a_proj", "attn_q_a", (query_rank, hidden))
        yield norm("query_norm", "q_a_layernorm", "attn_q_a_norm", query_rank)
        yield from linear("query", "q_b_proj", "attn_q_b", (queries, query_rank))
    else:
        yield from linear("query", "q_proj", "attn_q", (queries, hidden))
    shape = sizes.rank + sizes.rotary_dim, hidden
    yield from linear("latent", "kv_a_proj_with_mqa", "attn_kv_a_mqa", shape)
    yield norm("latent_norm", "kv_a_layernorm", "attn_kv_a_norm", sizes.rank)
    start, size = 0, heads * (sizes.plain_dim + sizes.value_dim)
    for ours, rows in (("keys", sizes.plain_dim), ("values", sizes.value_dim)):
        cut = Cut(0, start, rows, size, groups=heads)
        stored = "self_attn.kv_b_proj.weight", "attn_kv_b.weight"
        place = f"latent_attention.{ours}.maps"
        yield names(place, *stored, (heads * rows, sizes.rank), cut=cut)
        start += rows
    yield from linear("output", "o_proj", "attn_output", (hidden, heads * sizes.value_dim))


_DEFAULTS: Published = {
    **ROUTING_DEFAULTS,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim")),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim")),
    "attention_bias": False,
    "rope_interleave": True,
}
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    _fields,
    _layer,
    same_as=("kimi_k2",),
    defaults={
        **_DEFAULTS,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "n_group": 8,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
    },
    only=ROUTING_ONLY,
)
GLM4_MOE_LITE = Family(
    "glm4_moe_lite",
    _fields,
    _layer,
    defaults={
        **_DEFAULTS,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.8,
    },
    only=ROUTING_ONLY,
)
