"""Writing a checkpoint as a Hugging Face directory, for programs that read nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.weights.checkpoint import Checkpoint, open_checkpoint
from blockdraft_models.weights.tensor_names import tensor_names


def export_huggingface(source: Path, directory: Path) -> Checkpoint:
    """Write configuration and float32 weights, dequantized if need be; no tokenizer.

    All weights are held in memory meanwhile.

    Args:
        source: A Hugging Face directory or a `.gguf` file.
        directory: Created if needed.

    Returns:
        What was written; the fingerprint is that of the source.

    Raises:
        CheckpointError: If the source is damaged, incomplete or of an unsupported kind.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open_checkpoint(source) as opened:
        config = opened.checkpoint.config
        tensors = {
            name.hf: np.asarray(opened.read(name), np.float32, order="C")
            for name in tensor_names(config)
        }
    # transformers refuses files that do not say so.
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hf_config(config)), encoding="utf-8")
    return Checkpoint(config, opened.checkpoint.fingerprint, directory)


def hf_config(config: DecoderConfig) -> dict[str, Any]:
    """Return the `config.json` that `DecoderConfig.from_hf` reads back as `config`."""
    return {
        "_name_or_path": config.name,
        "model_type": "qwen3" if config.qk_norm else "llama",
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling_hf(),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "max_position_embeddings": config.max_position_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
