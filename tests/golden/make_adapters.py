"""Makes LoRA adapters of some targets, and what PEFT computes with them in float64.

It also says how far off PEFT is in float32, relative to the largest logit.

Run from the root of the project, with torch, transformers and peft:
python -m tests.golden.make_adapters
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

FOLDER = Path(__file__).parent
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
# Of each target two adapters that differ in ranks, scales and the matrices they change.
ADAPTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3": (
        {"r": 4, "lora_alpha": 6, "target_modules": [*ATTENTION, *MLP]},
        {
            "r": 2,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj"],
            "rank_pattern": {"layers.0.self_attn.v_proj": 3},
            "alpha_pattern": {"v_proj": 5},
        },
    ),
    "phi3": (
        {"r": 3, "lora_alpha": 4, "target_modules": ["qkv_proj", "gate_up_proj"]},
        {
            "r": 5,
            "lora_alpha": 5,
            "target_modules": ["o_proj", "down_proj"],
            "use_rslora": True,
        },
    ),
    "qwen3-5": (
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": [*ATTENTION, "in_proj_qkv", "in_proj_z", "out_proj"],
        },
        {"r": 1, "lora_alpha": 2, "target_modules": MLP},
    ),
}


def make(target: str) -> None:
    folder = FOLDER / "adapters" / target
    shutil.rmtree(folder, ignore_errors=True)
    tokens = torch.as_tensor(np.load(FOLDER / "targets" / f"{target}.npz")["token_ids"][:1])
    values = {}
    for number, options in enumerate(ADAPTERS[target]):
        torch.manual_seed(number)
        base = AutoModelForCausalLM.from_pretrained(
            FOLDER / "targets" / target, dtype=torch.float32
        )
        model = get_peft_model(base, LoraConfig(**options, task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            # It begins at zero, as if there were no adapter.
            if "lora_B" in name:
                parameter.data = 0.1 * torch.randn_like(parameter)
        model.eval().save_pretrained(folder / f"adapter-{number}")
        (folder / f"adapter-{number}" / "README.md").unlink()
        config = folder / f"adapter-{number}" / "adapter_config.json"
        config.write_text(config.read_text().replace(str(FOLDER), ""))
        with torch.no_grad():
            rounded = model(tokens).logits.numpy()
            exact = model.double()(tokens).logits.numpy()
        values[f"logits-{number}"] = exact.astype(np.float32)
        values[f"error-{number}"] = np.abs(rounded - exact).max() / np.abs(exact).max()
    np.savez_compressed(FOLDER / "adapters" / f"{target}.npz", token_ids=tokens.numpy(), **values)


if __name__ == "__main__":
    for target in ADAPTERS:
        make(target)
