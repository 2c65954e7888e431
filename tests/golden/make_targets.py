"""Makes the targets: random weights of each public format, and what transformers says of them.

Run from the root of the project, with torch and transformers: python -m tests.golden.make_targets
"""

import json
from pathlib import Path

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
}


def make(name: str, seed: int) -> None:
    directory = TARGETS / name
    config = directory / "config.json"
    text = config.read_text()
    published = json.loads(text)
    for file in directory.glob("model*"):
        file.unlink()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms of one would hide that one is misplaced
            parameter.data += 0.2 * torch.randn_like(parameter)
    dtype = getattr(torch, published.get("dtype") or published["torch_dtype"])
    size = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    half = f"{size * 6 // 10 // 1000}KB" if "sharded" in name else "5GB"
    model.to(dtype).save_pretrained(directory, max_shard_size=half)
    config.write_text(text)
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
    for name, seed in SEEDS.items():
        make(name, seed)
