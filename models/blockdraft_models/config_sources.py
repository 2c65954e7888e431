"""Translation of published model metadata into the fields of `DecoderConfig`."""

from collections.abc import Collection, Mapping
from typing import Any

ARCHITECTURES = ("llama", "qwen3")

_LLAMA3_KEYS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


def fields_from_hf(
    config: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Reads a Hugging Face `config.json` of a Llama or Qwen3 model.

    Defaults are those of `LlamaConfig` and `Qwen3Config` in transformers.

    Args:
        config: The parsed file.
        generation_config: The parsed `generation_config.json`, or an empty mapping.

    Returns:
        Keyword arguments of `DecoderConfig`, with `rope_scaling` as a mapping or None.

    Raises:
        ValueError: If a field is missing or unsupported.
    """
    architecture = config.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"model_type {architecture!r} is not supported (supported: {', '.join(ARCHITECTURES)})"
        )
    _refuse_unsupported_hf(config)
    hidden, heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
    qwen3 = architecture == "qwen3"
    theta, scaling = _hf_rope(config)
    eos = generation_config.get("eos_token_id", config.get("eos_token_id"))
    return {
        "name": str(config.get("_name_or_path") or architecture),
        "vocab_size": _required(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _required(config, "intermediate_size"),
        "num_layers": _required(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or (128 if qwen3 else hidden // heads),
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": bool(config.get("attention_bias", False)),
        "qk_norm": qwen3,
        "max_position_embeddings": config.get("max_position_embeddings", 32768 if qwen3 else 2048),
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_ids": _token_ids(eos),
    }


def fields_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> dict[str, Any]:
    """Reads the key-value section of a GGUF file of a Llama or Qwen3 model.

    Key names are those of the GGUF specification (ggml `docs/gguf.md`).

    Args:
        metadata: The parsed keys.
        tensor_names: Names of the file's tensors.

    Returns:
        Keyword arguments of `DecoderConfig`; `rope_scaling` is always None.

    Raises:
        ValueError: If a key is missing or unsupported.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"GGUF architecture {architecture!r} is not supported "
            f"(supported: {', '.join(ARCHITECTURES)})"
        )

    def key(suffix: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{suffix}", default)

    if key("expert_count", 0):
        raise ValueError("mixture-of-experts models are not supported")
    if key("rope.scaling.type", "none") != "none":
        raise ValueError(f"GGUF rope scaling {key('rope.scaling.type')!r} is not supported")
    hidden = _required(metadata, f"{architecture}.embedding_length")
    heads = _required(metadata, f"{architecture}.attention.head_count")
    head_dim = key("attention.key_length", hidden // heads)
    if key("attention.value_length", head_dim) != head_dim:
        raise ValueError("heads whose keys and values differ in width are not supported")
    if key("rope.dimension_count", head_dim) != head_dim:
        raise ValueError("rotary embedding of a part of the head is not supported")
    vocab = key("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ()))
    # llama.cpp stops at any of these; end-of-turn differs from end-of-text in Llama 3.
    stops = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return {
        "name": str(metadata.get("general.name") or architecture),
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": _required(metadata, f"{architecture}.feed_forward_length"),
        "num_layers": _required(metadata, f"{architecture}.block_count"),
        "num_heads": heads,
        "num_kv_heads": key("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(
            _required(metadata, f"{architecture}.attention.layer_norm_rms_epsilon")
        ),
        "rope_theta": _shortest(key("rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "qk_norm": architecture == "qwen3",
        "max_position_embeddings": _required(metadata, f"{architecture}.context_length"),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_ids": tuple(dict.fromkeys(stop for stop in stops if stop is not None)),
    }


def _refuse_unsupported_hf(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported (supported: silu)")
    for flag in ("mlp_bias", "use_sliding_window"):
        if config.get(flag):
            raise ValueError(f"{flag} is not supported")
    if config.get("quantization_config"):
        raise ValueError("quantized Hugging Face checkpoints are not supported")


def _hf_rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    # transformers 5 moved both into `rope_parameters`; older files have them side by side.
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"rope scaling {kind!r} is not supported (supported: llama3)")
    return theta, {name: _required(parameters, name) for name in _LLAMA3_KEYS}


def _required(values: Mapping[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise ValueError(f"model metadata lacks {name!r}")
    return values[name]


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _shortest(value: float) -> float:
    # GGUF stores float32: 1e-5 reads back as 9.999999747378752e-06 and would compare unequal.
    return float(f"{value:.7g}")
