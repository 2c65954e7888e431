"""What a family is, and what its members' configurations have in common."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.rope_scaling import (
    AnyRopeScaling,
    LinearScaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from blockdraft_models.families.tensors import LayerNames, TensorName

Published = Mapping[str, Any]
"""A parsed `config.json`, or a section of it."""

_LLAMA3_KEYS = (
    *("factor", "low_freq_factor", "high_freq_factor"),
    "original_max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class Family:
    """Decoders that write configurations and name weights in one way."""

    model_type: str  # in `config.json`, and `DecoderConfig.family`
    # What of a `config.json` is this family's own, as fields of `DecoderConfig`; a ValueError says
    # what is not supported.
    fields: Callable[[Published], dict[str, Any]]
    layer: Callable[[LayerNames], Iterator[TensorName]]  # every weight of a layer, each once
    gguf: str | None = None  # architecture in GGUF files; None if those are not read
    same_as: tuple[str, ...] = ()  # further model types of the same form


def required(values: Published, name: str) -> Any:
    """Return what has to be there and not null."""
    if values.get(name) is None:
        raise ValueError(f"model metadata lacks {name!r}")
    return values[name]


def count(values: Published, name: str, default: int | None = None) -> int:
    """Return a whole number, or the default if it is absent or null; None if it has to be there."""
    value = required(values, name) if default is None else values.get(name)
    if value is None:
        return default or 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value


def section(values: Published, name: str) -> Published:
    """Return the JSON object under a key of another; empty if it is absent or null."""
    found = values.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} must be an object, got {type(found).__name__}")
    return found


def windows(config: Published, default: str = "full_attention") -> tuple[int, ...]:
    """Return the window of each layer of a `config.json`; empty if there is none."""
    layers, window = count(config, "num_hidden_layers"), config.get("sliding_window") or 0
    kinds = config.get("layer_types") or [default] * layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layers of {sorted(unknown)[0]} are not supported")
    found = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    # What sees as far as any context reaches has no window.
    longest = count(config, "max_position_embeddings", 0)
    return found if any(0 < each < (longest or each + 1) for each in found) else ()


def rope(config: Published, parameters: Published | None = None) -> tuple[float, Any]:
    """Return the base of the rotary frequencies, and how they are scaled.

    transformers 5 moved both into `rope_parameters`; older files have them side by side.
    """
    if parameters is None:
        parameters = _rope_parameters(config)
    theta = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    read = _SCALINGS.get(kind)
    if read is None:
        raise ValueError(
            f"rope scaling {kind!r} is not supported (supported: {', '.join(_SCALINGS)})"
        )
    return theta, read(config, parameters)


def rotary_dim(config: Published, head_dim: int) -> int | None:
    """Return how many elements of a head are rotated; None for all."""
    name = "partial_rotary_factor"
    share = _rope_parameters(config).get(name, config.get(name, 1))
    return None if share == 1 else int(head_dim * share)


def _llama3(_: Published, parameters: Published) -> AnyRopeScaling:
    return RopeScaling(**{name: required(parameters, name) for name in _LLAMA3_KEYS})


def _yarn(config: Published, parameters: Published) -> AnyRopeScaling:
    factor = float(required(parameters, "factor"))
    if parameters.get("mscale") or parameters.get("mscale_all_dim"):
        raise ValueError("rope scaling 'yarn' with mscale is not supported")
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    longest = count(config, "max_position_embeddings", 0)
    return YarnScaling(
        factor,
        float(parameters.get("beta_fast") or 32),
        float(parameters.get("beta_slow") or 1),
        count(parameters, "original_max_position_embeddings", longest),
        float(attention),
        bool(parameters.get("truncate", True)),
    )


def _longrope(config: Published, parameters: Published) -> AnyRopeScaling:
    original = original_context(config)
    factor = parameters.get("factor") or count(config, "max_position_embeddings") / original
    attention = parameters.get("attention_factor")
    if attention is None:
        stretch = 1 + math.log(factor) / math.log(original) if factor > 1 else 1.0
        attention = math.sqrt(stretch)
    short = tuple(float(each) for each in required(parameters, "short_factor"))
    return LongRopeScaling(short, float(attention))


def original_context(config: Published) -> int:
    """Return for how many tokens a model with LongRoPE was made at first."""
    name, parameters = "original_max_position_embeddings", _rope_parameters(config)
    return count(parameters if name in parameters else config, name)


def _rope_parameters(config: Published) -> Published:
    return section(config, "rope_parameters") or section(config, "rope_scaling")


_SCALINGS: dict[str, Callable[[Published, Published], AnyRopeScaling | None]] = {
    "default": lambda _, __: None,
    "llama3": _llama3,
    "linear": lambda _, parameters: LinearScaling(float(required(parameters, "factor"))),
    "yarn": _yarn,
    "longrope": _longrope,
}


def read_config(family: Family, config: Published, generation: Published) -> DecoderConfig:
    """Read a `config.json` of a family; stop tokens of a `generation_config.json` win."""
    common = published_sizes(family.model_type, config, generation)
    refuse(config, "mlp_bias")
    own = family.fields(config)
    head_dim = common["head_dim"]
    if own.setdefault("rotary_dim", None) is None and rotary_dim(config, head_dim) is not None:
        raise ValueError("rotary embedding of a part of the head is not supported")
    if "rope_theta" not in own:
        own["rope_theta"], own["rope_scaling"] = rope(config)
    return DecoderConfig(**{**common, **own})


def published_sizes(model_type: str, config: Published, generation: Published) -> dict[str, Any]:
    """Read what all families call alike, as fields of `DecoderConfig`."""
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    head_dim = count(config, "head_dim", hidden // max(heads, 1))
    return {
        "name": str(config.get("_name_or_path") or model_type),
        "family": model_type,
        "vocab_size": count(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": count(config, "intermediate_size"),
        "num_layers": count(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": count(config, "num_key_value_heads", heads),
        "head_dim": head_dim,
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": bool(config.get("attention_bias", False)),
        "qk_norm": False,
        "max_position_embeddings": count(config, "max_position_embeddings", 2048),
        "bos_token_id": token_id(config.get("bos_token_id")),
        "eos_token_ids": token_ids(eos),
    }


def token_id(value: Any) -> int | None:
    """Return a token id, or None."""
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{value!r} is not a token id")
    return value


def token_ids(value: Any) -> tuple[int, ...]:
    """Return the token ids of a list, or of one alone."""
    ids = [token_id(one) for one in (value if isinstance(value, list) else [value])]
    return tuple(one for one in ids if one is not None)


def only_silu(config: Published) -> None:
    """Refuse another activation."""
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported (supported: silu)")


def refuse(config: Published, *flags: str) -> None:
    """Refuse a configuration in which one of these flags is set."""
    for flag in flags:
        if config.get(flag):
            raise ValueError(f"{flag} is not supported")
