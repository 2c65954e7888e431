"""The definition of a family, and the parts that all configurations share."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.rope_scaling import (
    AnyRopeScaling,
    LinearScaling,
    LongRopeScaling,
    ProportionalScaling,
    RopeScaling,
    YarnScaling,
)
from blockdraft_models.families.tensors import LayerNames, TensorName

Published = Mapping[str, Any]
"""A parsed `config.json`, or a section of it."""

# Keys of a `config.json` that every family reads, and the values that missing ones stand for; None
# for keys that are required or follow from others. Values here and in `Family` are transformers'.
_DEFAULTS: Published = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim")),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "quantization_config", "model_type")),
    **dict.fromkeys(("rope_parameters", "rope_scaling", "original_max_position_embeddings")),
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
# Keys of which only this value is supported.
_ONLY: Published = {"hidden_act": "silu", "mlp_bias": False}
# Keys that do not change the function: of training, of running transformers, of other programs.
_UNREAD = """
architectures auto_map dtype torch_dtype transformers_version transformers.js_config name_or_path
initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop pretraining_tp
router_aux_loss_coef output_router_logits use_cache cache_implementation return_dict
output_attentions output_hidden_states chunk_size_feed_forward is_encoder_decoder is_decoder
tie_encoder_decoder torchscript id2label label2id num_labels problem_type tokenizer_class
task_specific_params pad_token_id max_window_layers model_max_length attn_implementation
temperature top_k top_p typical_p do_sample num_beams num_beam_groups num_return_sequences
max_length max_new_tokens min_length early_stopping diversity_penalty length_penalty
repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size is_llama_config
initial_context_length experts_per_token full_attn_mod interpolate_factor fuse_cross_entropy ep_size
"""
WITHOUT_EFFECT = frozenset(_UNREAD.split())


@dataclass(frozen=True, slots=True)
class Family:
    """Decoders that write configurations and name weights in one way."""

    model_type: str  # in `config.json`, and `DecoderConfig.family`
    # Reads the family's own keys of a `config.json` into fields of `DecoderConfig`; a ValueError
    # says what is not supported.
    fields: Callable[[Published], dict[str, Any]]
    layer: Callable[[LayerNames], Iterator[TensorName]]  # every weight of a layer, each once
    gguf: str | None = None  # architecture in GGUF files; None if those are not read
    same_as: tuple[str, ...] = ()  # further model types of the same form
    defaults: Published = field(default_factory=dict)  # further keys, or other values of them
    only: Published = field(default_factory=dict)  # further keys with one value

    @property
    def keys(self) -> Published:
        """The keys of a `config.json` that are read, and the values of missing ones."""
        return {**_DEFAULTS, **_ONLY, **self.defaults, **self.only}

    def check_read(self, config: Published) -> None:
        """Refuse, by a ValueError, a `config.json` that sets a key which is not read."""
        known_names = WITHOUT_EFFECT.union(self.keys)
        for name, value in config.items():
            if value and name not in known_names and not name.startswith(("_", "unsloth_")):
                raise ValueError(
                    f"{name[:50]} in config.json is not supported; remove it if the model computes "
                    "the same without it"
                )


def required(values: Published, name: str) -> Any:
    """Return a value that has to be there and not null."""
    if values.get(name) is None:
        raise ValueError(f"model metadata lacks {name!r}")
    return values[name]


def count(values: Published, name: str, default: int | None = None) -> int:
    """Return a whole number, or `default` if it is absent or null; None makes it required."""
    value = required(values, name) if default is None else values.get(name)
    if value is None:
        return default or 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value


def section(values: Published, name: str) -> Published:
    """Return the JSON object under a key of another; empty if it is absent or null."""
    value = values.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {type(value).__name__}")
    return value


def number(values: Published, name: str) -> float:
    """Return a number that has to be there."""
    value = required(values, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {str(value)[:50]!r}")
    return float(value)


def windows(config: Published, default: str = "full_attention") -> tuple[int, ...]:
    """Return the window of each layer of a `config.json`, 0 for none."""
    layers, window = count(config, "num_hidden_layers"), config.get("sliding_window") or 0
    kinds = config.get("layer_types") or [default] * layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layers of {sorted(unknown)[0]} are not supported")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def rope(config: Published, parameters: Published | None = None) -> dict[str, Any]:
    """Return the rotation of heads, as fields of `DecoderConfig`.

    transformers 5 moved all of it into `rope_parameters`; in older files, `rope_scaling` wins.
    """
    if parameters is None:
        parameters = rope_parameters(config)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _SCALINGS:
        raise ValueError(
            f"rope scaling {kind!r} is not supported (supported: {', '.join(_SCALINGS)})"
        )
    keys, read = _SCALINGS[kind]
    for name, value in parameters.items():
        if value and name not in (*_ROPE_KEYS, *keys):
            raise ValueError(f"{name} of rope scaling {kind!r} is not supported")
    anywhere = {**config, **parameters}
    share = 1.0 if kind == _PROPORTIONAL else number(anywhere, "partial_rotary_factor")
    return {
        "rope_theta": number(anywhere, "rope_theta"),
        "rope_scaling": read(config, parameters),
        "rotary_dim": None if share == 1 else int(head_dim(config) * share),
    }


def whole_rope(config: Published, parameters: Published | None = None) -> dict[str, Any]:
    """Return the rotation of whole heads; `ValueError` if only a part of a head is rotated."""
    fields = rope(config, parameters)
    if fields["rotary_dim"] is not None:
        raise ValueError("rotary embedding of a part of the head is not supported")
    return fields


def ropes_by_kind(config: Published, local_theta: float) -> dict[str, Any]:
    """Return the rotations of layers without and with a window; the former have `rope_scaling`."""
    by_kind = section(config, "rope_parameters")
    if set(by_kind) - {"full_attention", "sliding_attention"}:
        raise ValueError("rope_parameters other than by kind of attention are not supported")
    scaling = section(config, "rope_scaling")
    everywhere = whole_rope(config, {**section(by_kind, "full_attention"), **scaling})
    local = whole_rope({**config, "rope_theta": local_theta}, section(by_kind, "sliding_attention"))
    if isinstance(everywhere["rope_scaling"], LongRopeScaling) or local["rope_scaling"]:
        raise ValueError("rope scaling of layers with a window, or by LongRoPE, is not supported")
    return {**everywhere, "local_rope_theta": local["rope_theta"]}


def head_dim(config: Published) -> int:
    """Return the width of a head."""
    heads = count(config, "num_attention_heads")
    return count(config, "head_dim", count(config, "hidden_size") // max(heads, 1))


def _llama3(config: Published, parameters: Published) -> AnyRopeScaling:
    factor, low, high = (number(parameters, name) for name in _LLAMA3_KEYS)
    return RopeScaling(factor, low, high, _original_context(config, parameters))


def _yarn(config: Published, parameters: Published) -> AnyRopeScaling:
    factor = number(parameters, "factor")
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return YarnScaling(
        factor,
        float(parameters.get("beta_fast") or 32),
        float(parameters.get("beta_slow") or 1),
        _original_context(config, parameters),
        float(attention),
        bool(parameters.get("truncate", True)),
    )


def _longrope(config: Published, parameters: Published) -> AnyRopeScaling:
    original = _original_context(config, parameters)
    factor = parameters.get("factor") or count(config, "max_position_embeddings") / original
    attention = parameters.get("attention_factor")
    if attention is None:
        stretch = 1 + math.log(factor) / math.log(original) if factor > 1 else 1.0
        attention = math.sqrt(stretch)
    short = tuple(float(short_factor) for short_factor in required(parameters, "short_factor"))
    return LongRopeScaling(short, float(attention))


def _proportional(config: Published, parameters: Published) -> AnyRopeScaling:
    share = number({**config, **parameters}, "partial_rotary_factor")
    factor = float(parameters.get("factor") or 1)
    return ProportionalScaling(int(share * head_dim(config) // 2), factor)


def _original_context(config: Published, parameters: Published) -> int:
    """Return the context length before it was stretched, in tokens."""
    longest = count(parameters, _ORIGINAL, count(config, "max_position_embeddings"))
    return count(config, _ORIGINAL, longest)


def rope_parameters(config: Published) -> Published:
    """Return the object of a configuration that describes the rotation of all layers."""
    return section(config, "rope_scaling") or section(config, "rope_parameters")


def _longest(config: Published, scaling: AnyRopeScaling | None) -> int:
    """Return the longest context, in tokens."""
    longest = count(config, "max_position_embeddings")
    if isinstance(scaling, LongRopeScaling):
        # Beyond it, keys would have to be rotated anew by the long factors.
        return min(longest, _original_context(config, rope_parameters(config)))
    if isinstance(scaling, YarnScaling):
        return max(longest, int(scaling.factor * scaling.original_max_position_embeddings))
    return longest


_ORIGINAL = "original_max_position_embeddings"
_PROPORTIONAL = "proportional"
_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor")
_ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
# The keys of each kind of scaling, and their reader.
_SCALINGS: dict[
    str, tuple[tuple[str, ...], Callable[[Published, Published], AnyRopeScaling | None]]
] = {
    "default": ((), lambda _, __: None),
    "llama3": ((*_LLAMA3_KEYS, _ORIGINAL), _llama3),
    _PROPORTIONAL: (("factor",), _proportional),
    "linear": (("factor",), lambda _, parameters: LinearScaling(number(parameters, "factor"))),
    "yarn": (
        ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate", _ORIGINAL),
        _yarn,
    ),
    "longrope": (
        ("factor", "short_factor", "long_factor", "attention_factor", _ORIGINAL),
        _longrope,
    ),
}


def read_config(family: Family, config: Published, generation: Published) -> DecoderConfig:
    """Read a `config.json` of a family; stop tokens of a `generation_config.json` win."""
    config = {**family.keys, **config}
    if config["rope_parameters"] is None:
        config["rope_parameters"] = family.keys["rope_parameters"]
    for name, only in {**_ONLY, **family.only}.items():
        if config[name] != only:
            value = str(config[name])[:50]
            raise ValueError(f"{name} {value!r} is not supported (supported: {only})")
    keys = {**config, "generation_config": generation}
    fields = {**published_sizes(family.model_type, config, generation), **family.fields(keys)}
    if "rope_theta" not in fields:
        fields |= whole_rope(config)
    longest = _longest(config, fields["rope_scaling"])
    # Windows as long as any context are left out, unless their layers rotate differently.
    if "local_rope_theta" not in fields and not any(
        0 < window < longest for window in fields.get("windows", ())
    ):
        fields["windows"] = ()
    return DecoderConfig(**{**fields, "max_position_embeddings": longest})


def published_sizes(model_type: str, config: Published, generation: Published) -> dict[str, Any]:
    """Read the keys that all families share, as fields of `DecoderConfig`."""
    config = {**_DEFAULTS, **config}
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    return {
        "name": str(config.get("_name_or_path") or model_type),
        "family": model_type,
        "vocab_size": count(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": count(config, "intermediate_size"),
        "num_layers": count(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": count(config, "num_key_value_heads", heads),
        "head_dim": head_dim(config),
        "rms_norm_eps": number(config, "rms_norm_eps"),
        "tie_word_embeddings": bool(config["tie_word_embeddings"]),
        "attention_bias": bool(config.get("attention_bias", False)),
        "qk_norm": False,
        "max_position_embeddings": count(config, "max_position_embeddings"),
        "bos_token_id": token_id(config["bos_token_id"]),
        "eos_token_ids": token_ids(generation.get("eos_token_id", config["eos_token_id"])),
    }


def token_id(value: Any) -> int | None:
    """Return a token id, or None."""
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{value!r} is not a token id")
    return value


def token_ids(value: Any) -> tuple[int, ...]:
    """Return the token ids of a list, or a single token id as one."""
    ids = [token_id(token) for token in (value if isinstance(value, list) else [value])]
    return tuple(token for token in ids if token is not None)
