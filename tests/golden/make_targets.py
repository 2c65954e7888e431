"""Makes the targets: random checkpoints of each public format, and what transformers says of them.

Run from the root of the project, with torch and transformers: python -m tests.golden.make_targets
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TARGETS = Path(__file__).parent / "targets"
VOCAB = 96
CAPTURE = [1, 0]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "attention_bias": False,
    "hidden_act": "silu",
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.25,
}
LLAMA: dict[str, Any] = {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN3: dict[str, Any] = {
    **COMMON,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 5,
}
# Configurations as the models' publishers write them: before transformers 5, and since.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-untied-llama3-sharded": {
        **LLAMA,
        "num_hidden_layers": 7,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "llama-tied-head64": {
        **LLAMA,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {**LLAMA3, "factor": 32.0, "rope_theta": 500000.0},
        "tie_word_embeddings": True,
        "dtype": "float16",
    },
    "qwen3": {
        **QWEN3,
        "num_hidden_layers": 5,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "qwen3-untied-sharded": {
        **QWEN3,
        "num_hidden_layers": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        "layer_types": ["full_attention"] * 3,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
}


def make(name: str, published: dict[str, Any], seed: int) -> None:
    directory = TARGETS / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = directory / "config.json"
    config.write_text(json.dumps(published, indent=2) + "\n")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms of one would hide that one is misplaced
            parameter.data += 0.2 * torch.randn_like(parameter)
    dtype = getattr(torch, published.get("dtype") or published["torch_dtype"])
    size = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    half = f"{size * 6 // 10 // 1000}KB" if "sharded" in name else "5GB"
    model.to(dtype).save_pretrained(directory, max_shard_size=half)
    config.write_text(json.dumps(published, indent=2) + "\n")
    (directory / "generation_config.json").unlink(missing_ok=True)

    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.randint(0, VOCAB, (2, 24))
    with torch.no_grad():
        output = loaded(tokens, output_hidden_states=True)
    np.savez_compressed(
        TARGETS / f"{name}.npz",
        token_ids=tokens.numpy(),
        logits=output.logits.numpy(),
        capture=np.array(CAPTURE),
        # hidden_states[0] is the embedding, so [i + 1] the output of layer i.
        captured=torch.cat([output.hidden_states[i + 1] for i in CAPTURE], -1).numpy(),
    )


if __name__ == "__main__":
    for seed, (name, published) in enumerate(CONFIGS.items()):
        make(name, published, seed)
