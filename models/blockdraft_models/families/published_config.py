"""Published model metadata, of Hugging Face and of GGUF, as a `DecoderConfig`, and back."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.rope_scaling import LinearScaling, RopeScaling
from blockdraft_models.families.family import (
    Published,
    count,
    published_sizes,
    read_config,
    required,
    section,
    token_id,
    token_ids,
)
from blockdraft_models.families.table import family_of_gguf, family_of_model_type, is_known

# Names of fields in a `config.json`, where they differ.
_HF_NAMES = {
    "family": "model_type",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "eos_token_ids": "eos_token_id",
}
# Keys of a GGUF file: those that are read, then those that change nothing in llama.cpp.
_GGUF_KEYS = """
vocab_size block_count context_length embedding_length feed_forward_length expert_count
expert_used_count expert_feed_forward_length attention.head_count attention.head_count_kv
attention.key_length attention.value_length attention.layer_norm_rms_epsilon rope.dimension_count
rope.freq_base rope.scaling.type rope.scaling.factor rope.scale_linear
rope.scaling.finetuned rope.scaling.original_context_length tensor_data_layout
attention.sliding_window expert_weights_norm
"""
# Keys of which only this value is supported; the gating function 1 is softmax.
_GGUF_ONLY = {"expert_gating_func": 1, "expert_weights_scale": 1.0, "attention.causal": True}
_TOKENS = ("tokens", "token_type")
CONTROL = 3  # of the token types of the GGUF specification
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("<EOT>", "<|eom_id|>"),
)
# Models that also take images, and whether their head is by default the embedding.
_WITH_IMAGES = {
    **{"gemma3": True, "gemma4": True, "diffusion_gemma": True},
    **{"qwen3_5": False, "qwen3_5_moe": False},
}
_WRITTEN = ("llama", "qwen2", "qwen3")


def config_from_hf(
    config: Published, generation_config: Published | None = None, *, any_family: bool = False
) -> DecoderConfig:
    """Read a parsed `config.json`; stop tokens of a `generation_config.json` win.

    Of a model that also takes images, the text model is read. Defaults are those of transformers.
    With `any_family`, an unknown family passes; then only the sizes are right.
    """
    generation, text = generation_config or {}, section(config, "text_config")
    if config.get("model_type") in _WITH_IMAGES and text:
        shared = ("_name_or_path", "eos_token_id", "bos_token_id", "canvas_length")
        # Of the text model it says nothing.
        tied = config.get("tie_word_embeddings", _WITH_IMAGES[config["model_type"]])
        defaults = {name: config[name] for name in shared if name in config}
        config = {**defaults, **text, "tie_word_embeddings": tied}
    model_type = config.get("model_type")
    if any_family and not is_known(model_type):
        sizes = published_sizes(str(model_type), config, generation)
        # Drafters made for it rotate like this; the rotation of the target is in its module.
        return DecoderConfig(**sizes, rope_theta=10000.0, rope_scaling=None)
    family = family_of_model_type(model_type)
    family.check_read(config)
    return read_config(family, config, generation)


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return the `config.json` from which `config_from_hf` reads this; dense families only."""
    if config.family not in _WRITTEN:
        raise ValueError(f"configurations of {config.family} are not written")
    fields = {_HF_NAMES.get(name, name): value for name, value in asdict(config).items()}
    keys = family_of_model_type(config.family).keys
    return {
        "_name_or_path": config.name,
        **{name: value for name, value in fields.items() if name in keys},
        "hidden_act": "silu",
        "rope_scaling": rope_scaling_to_hf(config),
        "eos_token_id": list(config.eos_token_ids),
    }


def rope_scaling_to_hf(config: DecoderConfig) -> dict[str, Any] | None:
    """Return `rope_scaling` as a `config.json` has it."""
    if config.rope_scaling is None:
        return None
    if not isinstance(config.rope_scaling, RopeScaling):
        raise ValueError(f"{type(config.rope_scaling).__name__} is not written")
    return {"rope_type": "llama3", **asdict(config.rope_scaling)}


def config_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> DecoderConfig:
    """Read the key-value section of a GGUF file; Llama 3's RoPE scaling is not in there.

    Key names are those of the GGUF specification (ggml `docs/gguf.md`). It has none for tied
    embeddings and biases: whether there are any follows from the tensors.
    """
    architecture = metadata.get("general.architecture")
    family = family_of_gguf(architecture)

    def key(suffix: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{suffix}", default)

    for name, value in metadata.items():
        suffix = name.removeprefix(f"{architecture}.")
        is_supported = (
            suffix == name or suffix in _GGUF_KEYS.split() or value == _GGUF_ONLY.get(suffix)
        )
        if value and not is_supported:
            raise ValueError(f"{name[:50]} is not supported")
    experts = key("expert_count", 0)
    if experts and family.model_type != "qwen3_moe":
        raise ValueError(f"a mixture of experts of {architecture} is not supported")
    scaling = key("rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise ValueError(f"GGUF rope scaling {scaling!r} is not supported")
    factor = key("rope.scaling.factor", key("rope.scale_linear", 0)) or 1
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
    stops += spelled_ends(metadata)
    inner = "expert_feed_forward_length" if experts else "feed_forward_length"
    return DecoderConfig(
        name=str(metadata.get("general.name") or architecture),
        family=family.model_type,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=count(metadata, f"{architecture}.{inner}"),
        num_layers=count(metadata, f"{architecture}.block_count"),
        num_heads=heads,
        num_kv_heads=count(metadata, f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=_shortest(
            required(metadata, f"{architecture}.attention.layer_norm_rms_epsilon")
        ),
        rope_theta=_shortest(key("rope.freq_base", 10000.0)),
        rope_scaling=None if scaling == "none" or factor == 1 else LinearScaling(_shortest(factor)),
        tie_word_embeddings="output.weight" not in tensor_names,
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias=family.model_type != "qwen2",
        qk_norm=family.model_type.startswith("qwen3"),
        max_position_embeddings=count(metadata, f"{architecture}.context_length"),
        bos_token_id=token_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_token_ids=token_ids(list(dict.fromkeys(stop for stop in stops if stop is not None))),
        num_experts=experts,
        experts_per_token=key("expert_used_count", 0),
    )


def spelled_ends(metadata: Mapping[str, Any]) -> list[int]:
    """Return the control tokens of a GGUF file that end a turn by how they are spelled.

    llama.cpp stops at them too, because most files name only one of them.
    """
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}") or () for name in _TOKENS)
    kinds = enumerate(zip(tokens, types, strict=False))
    return [index for index, (token, kind) in kinds if kind == CONTROL and token in _ENDS]


def _shortest(value: int | float) -> float:
    # GGUF stores float32: 1e-5 reads back as 9.999999747378752e-06 and would compare unequal.
    return float(f"{value:.7g}")
