"""Real but tiny decoders and checkpoints, so that every process can be tested without downloads."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from blockdraft_models.decoder.config import DecoderConfig, DeltaSizes
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.rope_scaling import ProportionalScaling
from blockdraft_models.families.published_config import config_to_hf
from blockdraft_models.families.table import tensor_names
from blockdraft_models.families.tensors import TensorName
from blockdraft_models.tokenizer.files import BYTE_TO_CHAR

_BYTES = 256
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IM_START, IM_END = _BYTES + 1, _BYTES + 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


Kind = Literal["llama", "qwen3"]


def tiny_config(kind: Kind = "llama", **overrides: Any) -> DecoderConfig:
    """Return a configuration that runs in milliseconds: a tied head, or Qwen3's untied one.

    A `vocab_size` of at least 260 is needed to write a tokenizer for it.
    """
    fields: dict[str, Any] = {
        "name": f"tiny-{kind}",
        "family": kind,
        "vocab_size": _BYTES + 4,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": kind == "llama",
        "attention_bias": False,
        "qk_norm": kind == "qwen3",
        "max_position_embeddings": 512,
        "bos_token_id": IM_START,
        "eos_token_ids": (IM_END,),
    }
    return DecoderConfig(**{**fields, **overrides})


# What other families than Llama's and Qwen's dense ones compute, in two layers.
LIKE_GPT_OSS: dict[str, Any] = {
    "attention_bias": True,
    "attention_sinks": True,
    "windows": (10, 0),
    "activation": "clamped",
    "mlp_bias": True,
    "num_experts": 4,
    "experts_per_token": 2,
}
LIKE_GEMMA3: dict[str, Any] = {
    "kind": "qwen3",
    "norm_offset": 1.0,
    "output_norms": True,
    "embedding_scale": 5.7,
    "query_scale": 0.8,
    "activation": "gelu_tanh",
    "windows": (10, 0),
    "local_rope_theta": 500.0,
}
LIKE_GEMMA4: dict[str, Any] = {
    "qk_norm": True,
    "value_norm": True,
    "wide_norms": True,
    "output_norms": True,
    "output_scales": True,
    "embedding_scale": 5.7,
    "query_scale": 8**0.5,
    "activation": "gelu_tanh",
    "windows": (10, 0),
    "local_rope_theta": 500.0,
    "global_head_dim": 16,
    "global_kv_heads": 1,
    "values_are_keys": True,
    "rope_scaling": ProportionalScaling(2),
    "logit_cap": 30.0,
}
# Of four layers.
LIKE_GEMMA4_SHARED: dict[str, Any] = {
    **LIKE_GEMMA4,
    "windows": (10, 0, 10, 0),
    "num_kv_heads": 1,
    "values_are_keys": False,
    "layer_embedding_size": 6,
    "shared_kv_layers": 2,
    "double_mlp": True,
}
LIKE_GRANITE: dict[str, Any] = {
    "embedding_scale": 12.0,
    "query_scale": 0.6,
    "residual_scale": 0.22,
    "logit_divisor": 8.0,
}
# Of five layers, the second to last attends.
LIKE_QWEN3_5: dict[str, Any] = {
    "kind": "qwen3",
    "rotary_dim": 4,
    "norm_offset": 1.0,
    "output_gate": True,
    "delta": DeltaSizes(2, 4, 8, 12, 4),
    "recurrent": (True, True, True, False, True),
    "num_layers": 5,
}
LIKE_QWEN3_NEXT: dict[str, Any] = {
    **LIKE_QWEN3_5,
    "recurrent": (True, False),
    "num_layers": 2,
    "num_experts": 4,
    "experts_per_token": 2,
    "shared_expert_size": 24,
}
LIKE_OLMO3: dict[str, Any] = {
    "qk_norm": True,
    "whole_qk_norm": True,
    "wide_norms": True,
    "input_norms": False,
    "output_norms": True,
    "windows": (10, 0),
}


def write_hf_checkpoint(decoder: Decoder, directory: Path) -> None:
    """Write a Hugging Face directory: config, weights, byte-level tokenizer, chat template.

    Tokens 0-255 are the bytes, 256 `<|endoftext|>`, 257 `<|im_start|>`, 258 `<|im_end|>`; the
    rest of the vocabulary is reserved control tokens. The template is ChatML without a default
    system message and refuses unknown roles.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name.hf: weight for name, weight in decoder_tensors(decoder)}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    files = {
        "config.json": config_to_hf(decoder.config),
        "tokenizer.json": byte_tokenizer(decoder.config.vocab_size),
        "tokenizer_config.json": {
            "add_bos_token": False,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")


def decoder_tensors(decoder: Decoder) -> list[tuple[TensorName, np.ndarray]]:
    """List a decoder's weights as checkpoints store them, in their order."""
    state = {".".join(map(str, k)): v for k, v in nnx.to_flat_state(nnx.state(decoder))}
    return [(name, np.asarray(state[name.path][...])) for name in tensor_names(decoder.config)]


def byte_tokenizer(vocab_size: int) -> dict[str, Any]:
    """Return a `tokenizer.json` whose tokens are bytes, then control tokens."""
    reserved = vocab_size - _BYTES - len(_SPECIALS)
    if reserved < 0:
        raise ValueError(f"a byte tokenizer needs at least {_BYTES + len(_SPECIALS)} tokens")
    specials = (*_SPECIALS, *(f"<|reserved_{i}|>" for i in range(reserved)))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": _BYTES + i, "content": content, **flags, "special": True}
            for i, content in enumerate(specials)
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {BYTE_TO_CHAR[byte]: byte for byte in range(_BYTES)},
            "merges": [],
        },
    }
