"""Qwen3-Next and the text models of Qwen3.5: three layers with a state to each that attends."""

from collections.abc import Iterator
from typing import Any

from blockdraft_models.decoder.config import DeltaSizes
from blockdraft_models.families.family import (
    Family,
    Published,
    count,
    required,
    rope,
    rope_parameters,
)
from blockdraft_models.families.tensors import Cut, LayerNames, TensorName

# Of text alone, an image's axes of a position are one, wherever they are in a head.
_AXES_OF_IMAGES = ("mrope_section", "mrope_interleaved")


def _dense(config: Published) -> dict[str, Any]:
    sizes = (
        *("linear_num_key_heads", "linear_num_value_heads"),
        *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    )
    parameters = rope_parameters(config)
    parameters = {name: parameters[name] for name in parameters if name not in _AXES_OF_IMAGES}
    return {
        **rope(config, parameters),
        "qk_norm": True,
        "norm_offset": 1.0,
        "output_gate": True,
        "delta": DeltaSizes(*(count(config, name) for name in sizes)),
        "recurrent": _recurrent(config),
    }


def _recurrent(config: Published) -> tuple[bool, ...]:
    layers, interval = count(config, "num_hidden_layers"), count(config, "full_attention_interval")
    kinds = config["layer_types"]
    if kinds is None:
        kinds = ["linear" if (layer + 1) % interval else "full" for layer in range(layers)]
        kinds = [f"{kind}_attention" for kind in kinds]
    unknown = set(kinds) - {"linear_attention", "full_attention"}
    if unknown:
        raise ValueError(f"layers of {sorted(unknown)[0]} are not supported")
    if "full_attention" not in kinds:
        raise ValueError("a model without layers of full_attention is not supported")
    return tuple(kind == "linear_attention" for kind in kinds)


def _sparse(config: Published) -> dict[str, Any]:
    if config["mlp_only_layers"]:
        raise ValueError("mlp_only_layers is not supported")
    return {
        **_dense(config),
        "intermediate_size": count(config, "moe_intermediate_size"),
        "num_experts": count(config, "num_experts"),
        "experts_per_token": count(config, "num_experts_per_tok"),
        "normalized_routing": bool(required(config, "norm_topk_prob")),
        "shared_expert_size": count(config, "shared_expert_intermediate_size"),
    }


def _layer(names: LayerNames) -> Iterator[TensorName]:
    yield names.norm("attention_norm", "input_layernorm", "attn_norm")
    if names.config.delta is None:
        yield from _gated_attention(names)
    else:
        yield from _recurrence(names, names.config.delta)
    yield names.norm("mlp_norm", "post_attention_layernorm", "post_attention_norm")
    if names.config.num_experts:
        yield from _experts(names)
    else:
        yield from names.mlp()


def _gated_attention(names: LayerNames) -> Iterator[TensorName]:
    """Yield the weights of attention; each head's queries are stored before its gate."""
    width, heads = names.config.head_dim, names.config.num_heads
    cuts = {"query": 0, "gate": width}
    for name in names.attention():
        if name.path.endswith("attention.query.weight"):
            for ours, start in cuts.items():
                stored, ggml = "self_attn.q_proj.weight", "attn_q.weight"
                cut = Cut(0, start, width, 2 * heads * width, groups=heads)
                yield names(f"attention.{ours}.weight", stored, ggml, name.shape, cut=cut)
        else:
            yield name


def _recurrence(names: LayerNames, sizes: DeltaSizes) -> Iterator[TensorName]:
    hidden, heads, values = names.config.hidden_size, sizes.key_heads, sizes.value_heads
    group = values // heads
    # Rows of each stored matrix: of each key head in Qwen3-Next, of all since.
    qkv = {"query": sizes.key_dim, "key": sizes.key_dim, "value": group * sizes.value_dim}
    all_qkv = {name: heads * rows for name, rows in qkv.items()}
    gate, rate, decay = {"gate": qkv["value"]}, {"rate": group}, {"decay": group}
    if names.config.family == "qwen3_next":
        stored = {"in_proj_qkvz": qkv | gate, "in_proj_ba": rate | decay}
    else:
        stored = {"in_proj_z": gate, "in_proj_b": rate, "in_proj_a": decay}
        yield from _parts(names, "in_proj_qkv", all_qkv, 1, (hidden,))
    for theirs, rows in stored.items():
        yield from _parts(names, theirs, rows, heads, (hidden,))
    taps = {f"{name}_taps": rows for name, rows in all_qkv.items()}
    yield from _parts(names, "conv1d", taps, 1, (1, sizes.taps))
    for ours, theirs, ggml in (
        ("log_decay", "A_log", "ssm_a"),
        ("decay_bias", "dt_bias", "ssm_dt"),
    ):
        yield names(f"recurrence.{ours}", f"linear_attn.{theirs}", ggml, (values,))
    yield names.norm("recurrence.norm", "linear_attn.norm", "ssm_norm", sizes.value_dim)
    shape = hidden, values * sizes.value_dim
    yield names("recurrence.output.weight", "linear_attn.out_proj.weight", "ssm_out.weight", shape)


def _parts(
    names: LayerNames, theirs: str, rows: dict[str, int], groups: int, row: tuple[int, ...]
) -> Iterator[TensorName]:
    """Yield the weights that are stored as one, group by group, with so many rows of each."""
    start, size = 0, groups * sum(rows.values())
    for ours, height in rows.items():
        cut = Cut(0, start, height, size, groups=groups)
        kind = "taps" if ours.endswith("_taps") else "weight"
        yield names(
            f"recurrence.{ours}.{kind}",
            f"linear_attn.{theirs}.weight",
            f"ssm_{ours}.weight",
            (groups * height, *row),
            cut=cut,
        )
        start += height


def _experts(names: LayerNames) -> Iterator[TensorName]:
    config = names.config
    hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_experts
    yield names("mlp.router", "mlp.gate.weight", "ffn_gate_inp.weight", (count, hidden))
    for name, joint in (
        ("gate", Cut(0, 0, inner, 2 * inner)),
        ("up", Cut(0, inner, inner, 2 * inner)),
        ("down", None),
    ):
        ours, ggml = f"mlp.{name}.weight", f"ffn_{name}_exps.weight"
        together = "gate_up" if joint else name
        # As Qwen3.5 is published but for FP8.
        second = names.expert(ours, f"mlp.experts.{together}_proj", ggml, cut=joint)
        theirs = f"mlp.experts.{{}}.{name}_proj.weight"
        yield names.expert(ours, theirs, ggml, alternative=second)
    inner = config.shared_expert_size
    if not inner:
        return
    for name, sizes in (
        ("gate", (inner, hidden)),
        ("up", (inner, hidden)),
        ("down", (hidden, inner)),
    ):
        stored = f"mlp.shared_expert.{name}_proj.weight", f"ffn_{name}_shexp.weight"
        yield names(f"shared_expert.mlp.{name}.weight", *stored, sizes)
    stored = "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"
    yield names("shared_expert.share", *stored, (1, hidden))


_DEFAULTS: Published = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "attention_bias": False,
    "full_attention_interval": 4,
    "layer_types": None,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    # Further layers that draft, which are left out.
    "mtp_num_hidden_layers": None,
    "mtp_use_dedicated_embeddings": False,
}
_ONLY: Published = {"attention_bias": False, "attn_output_gate": True, "mamba_ssm_dtype": "float32"}
_EXPERTS: Published = {
    **_DEFAULTS,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "mlp_only_layers": None,
}
QWEN3_NEXT = Family(
    "qwen3_next",
    _sparse,
    _layer,
    defaults={**_EXPERTS, "num_experts": 512, "num_experts_per_tok": 10},
    only={**_ONLY, "decoder_sparse_step": 1},
)
QWEN3_5 = Family(
    "qwen3_5_text", _dense, _layer, defaults={**_DEFAULTS, "num_key_value_heads": 4}, only=_ONLY
)
QWEN3_5_MOE = Family(
    "qwen3_5_moe_text",
    _sparse,
    _layer,
    defaults={**_EXPERTS, "num_experts": 256, "num_experts_per_tok": 8},
    only={**_ONLY, "norm_topk_prob": True},
)
