"""Published model metadata, of Hugging Face and of GGUF, as a `DecoderConfig`, and back."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from blockdraft_models.decoder.config import DecoderConfig, RopeScaling

_ARCHITECTURES = ("llama", "qwen3")

# What a `config.json` calls otherwise.
_HF_NAMES = {
    "name": "_name_or_path",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "eos_token_ids": "eos_token_id",
}
_LLAMA3_KEYS = (
    *("factor", "low_freq_factor", "high_freq_factor"),
    "original_max_position_embeddings",
)


def config_from_hf(
    config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> DecoderConfig:
    """Read a parsed `config.json`; stop tokens of a `generation_config.json` win.

    Defaults are those of `LlamaConfig` and `Qwen3Config` in transformers.
    """
    architecture = config.get("model_type")
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"model_type {architecture!r} is not supported (supported: {', '.join(_ARCHITECTURES)})"
        )
    _refuse_unsupported_hf(config)
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    qwen3 = architecture == "qwen3"
    theta, scaling = _hf_rope(config)
    eos = (generation_config or {}).get("eos_token_id", config.get("eos_token_id"))
    return DecoderConfig(
        name=str(config.get("_name_or_path") or architecture),
        vocab_size=count(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=count(config, "intermediate_size"),
        num_layers=count(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=count(config, "num_key_value_heads", heads),
        head_dim=count(config, "head_dim", 128 if qwen3 else hidden // max(heads, 1)),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        qk_norm=qwen3,
        max_position_embeddings=count(config, "max_position_embeddings", 32768 if qwen3 else 2048),
        bos_token_id=_token_id(config.get("bos_token_id")),
        eos_token_ids=_token_ids(eos),
    )


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return the `config.json` that `config_from_hf` reads back as this."""
    fields = {_HF_NAMES.get(name, name): value for name, value in asdict(config).items()}
    qk_norm = fields.pop("qk_norm")
    return {
        **fields,
        "model_type": "qwen3" if qk_norm else "llama",
        "hidden_act": "silu",
        "rope_scaling": rope_scaling_to_hf(config),
        "eos_token_id": list(config.eos_token_ids),
    }


def rope_scaling_to_hf(config: DecoderConfig) -> dict[str, Any] | None:
    """Return `rope_scaling` as a `config.json` has it."""
    if config.rope_scaling is None:
        return None
    return {"rope_type": "llama3", **asdict(config.rope_scaling)}


def config_from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str] = ()
) -> DecoderConfig:
    """Read the key-value section of a GGUF file; Llama 3's RoPE scaling is not in there.

    Key names are those of the GGUF specification (ggml `docs/gguf.md`). There are none for tied
    embeddings and biases: they show in which tensors exist. Without names, tied and bias-free.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"GGUF architecture {architecture!r} is not supported "
            f"(supported: {', '.join(_ARCHITECTURES)})"
        )

    def key(suffix: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{suffix}", default)

    if key("expert_count", 0):
        raise ValueError("mixture-of-experts models are not supported")
    if key("rope.scaling.type", "none") != "none":
        raise ValueError(f"GGUF rope scaling {key('rope.scaling.type')!r} is not supported")
    hidden = count(metadata, f"{architecture}.embedding_length")
    heads = count(metadata, f"{architecture}.attention.head_count")
    head_dim = count(metadata, f"{architecture}.attention.key_length", hidden // max(heads, 1))
    if key("attention.value_length", head_dim) != head_dim:
        raise ValueError("heads whose keys and values differ in width are not supported")
    if key("rope.dimension_count", head_dim) != head_dim:
        raise ValueError("rotary embedding of a part of the head is not supported")
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    vocab = count(metadata, f"{architecture}.vocab_size", len(tokens))
    # llama.cpp stops at any of these; end-of-turn differs from end-of-text in Llama 3.
    stops = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return DecoderConfig(
        name=str(metadata.get("general.name") or architecture),
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=count(metadata, f"{architecture}.feed_forward_length"),
        num_layers=count(metadata, f"{architecture}.block_count"),
        num_heads=heads,
        num_kv_heads=count(metadata, f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=_shortest(
            _required(metadata, f"{architecture}.attention.layer_norm_rms_epsilon")
        ),
        rope_theta=_shortest(key("rope.freq_base", 10000.0)),
        rope_scaling=None,
        tie_word_embeddings="output.weight" not in tensor_names,
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        qk_norm=architecture == "qwen3",
        max_position_embeddings=count(metadata, f"{architecture}.context_length"),
        bos_token_id=_token_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_token_ids=_token_ids(list(dict.fromkeys(stop for stop in stops if stop is not None))),
    )


def _refuse_unsupported_hf(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported (supported: silu)")
    for flag in ("mlp_bias", "use_sliding_window"):
        if config.get(flag):
            raise ValueError(f"{flag} is not supported")
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError("layers other than full_attention are not supported")
    if config.get("quantization_config"):
        raise ValueError("quantized Hugging Face checkpoints are not supported")


def _hf_rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    # transformers 5 moved both into `rope_parameters`; older files have them side by side.
    parameters = section(config, "rope_parameters") or section(config, "rope_scaling")
    theta = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1)) != 1:
        raise ValueError("rotary embedding of a part of the head is not supported")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"rope scaling {kind!r} is not supported (supported: llama3)")
    return theta, RopeScaling(**{name: _required(parameters, name) for name in _LLAMA3_KEYS})


def section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the JSON object under a key of another; empty if it is absent or null."""
    found = values.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} must be an object, got {type(found).__name__}")
    return found


def _required(values: Mapping[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise ValueError(f"model metadata lacks {name!r}")
    return values[name]


def count(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a whole number, or the default if it is absent or null; None if it has to be there."""
    value = _required(values, name) if default is None else values.get(name)
    if value is None:
        return default or 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value


def _token_id(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{value!r} is not a token id")
    return value


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = [_token_id(one) for one in (value if isinstance(value, list) else [value])]
    return tuple(one for one in ids if one is not None)


def _shortest(value: float) -> float:
    # GGUF stores float32: 1e-5 reads back as 9.999999747378752e-06 and would compare unequal.
    return float(f"{value:.7g}")
