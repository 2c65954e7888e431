"""Makes the targets: random weights of each public format, and what transformers says of them.

Run from the root of the project, with torch and transformers: python -m tests.golden.make_targets,
with names after it for some of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TARGETS = Path(__file__).parent / "targets"
VOCAB = 96
CAPTURE = [1, 0]
# In their folders are configurations as publishers write them, before transformers 5 and since; the
# weights are drawn with these seeds.
SEEDS = {
    "llama-untied-llama3-sharded": 0,
    "llama-tied-head64": 1,
    "qwen3": 2,
    "qwen3-untied-sharded": 3,
    "mistral-window": 4,
    "qwen2": 5,
    "qwen3-moe": 6,
    "gemma3": 7,
    "gpt-oss": 8,
    "phi3": 9,
    "phi3-longrope": 10,
    "smollm3": 11,
    "olmo2": 12,
    "olmo3": 13,
    "granite": 14,
    "gemma4": 15,
    "gemma4-shared": 17,  # with 16, the prompt has a token of padding, which is masked
    "qwen3-next": 18,
    "qwen3-5": 19,
    "qwen3-5-moe": 20,
    "gemma4-moe": 21,
    "deepseek-v3": 22,
    "glm4-moe-lite": 23,
    "glm4-moe": 24,
    "minimax-m2": 25,
}
CONTINUED = 100


def make(target: str, seed: int) -> None:
    loaded = random_model(TARGETS / target, seed)
    tokens = torch.randint(0, VOCAB, (2, 24))
    with torch.no_grad():
        output = loaded(tokens, output_hidden_states=True)
        loaded.generation_config.eos_token_id = None
        loaded.generation_config.use_mtp = None
        continued = loaded.generate(tokens[:1, :8], do_sample=False, max_new_tokens=CONTINUED)
    save(target, tokens, output, continued)


def random_model(directory: Path, seed: int, model_type: str | None = None) -> Any:
    """Write random weights to a folder that has a configuration; return the model in float32.

    With `model_type` it is read as that of another kind.
    """
    config = directory / "config.json"
    text = config.read_text()
    published = json.loads(text)
    if model_type is not None:
        config.write_text(json.dumps({**published, "model_type": model_type, "auto_map": {}}))
    for file in directory.glob("model*"):
        file.unlink()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    for name, parameter in model.named_parameters():
        # Norms of one, and biases of zero, would hide that one is misplaced.
        if parameter.ndim == 1 or name.endswith("bias"):
            parameter.data += 0.2 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias")):
            buffer += 0.2 * torch.randn_like(buffer)
    dtype = getattr(torch, published.get("dtype") or published["torch_dtype"])
    size = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    half = f"{size * 6 // 10 // 1000}KB" if "sharded" in directory.name else "5GB"
    model.to(dtype).save_pretrained(directory, max_shard_size=half)
    if model_type is None:
        config.write_text(text)
    (directory / "generation_config.json").unlink(missing_ok=True)
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config.write_text(text)
    return loaded


def save(target: str, tokens: torch.Tensor, output: Any, continued: torch.Tensor) -> None:
    np.savez_compressed(
        TARGETS / f"{target}.npz",
        token_ids=tokens.numpy(),
        logits=output.logits.numpy(),
        capture=np.array(CAPTURE),
        # hidden_states[0] is the embedding, so [i + 1] the output of layer i.
        captured=torch.cat([output.hidden_states[i + 1] for i in CAPTURE], -1).numpy(),
        continued=continued.numpy(),
    )


if __name__ == "__main__":
    for target in sys.argv[1:] or SEEDS:
        make(target, SEEDS[target])
