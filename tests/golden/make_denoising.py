"""Makes the targets that denoise, like `make_targets`, and what their publishers' programs say.

Run from the root of the project, with torch and transformers: python -m tests.golden.make_denoising

SDAR: `block_diffusion_generate` in JetAstra/SDAR's generate.py at 59549b1, greedy, with
`low_confidence_dynamic`, as many denoising steps as a block has tokens, and its threshold.
Fast-dLLM v2: `batch_sample` in v2/generation_functions.py of NVlabs/Fast-dLLM, greedy, with blocks
of 8 in one of 16 and a threshold of 0.9. DiffusionGemma: `generate` of transformers. None chooses
the mask here, and all is computed anew at each step, without a cache.
"""

import json
import random
from typing import Any

import numpy as np
import torch
from tests.golden.make_targets import CONTINUED, TARGETS, VOCAB, random_model, save
from torch.distributions import Categorical
from transformers import AutoConfig, DiffusionGemmaForBlockDiffusion

CANVAS_STEPS = 2
SDAR_THRESHOLD, FAST_DLLM_THRESHOLD, SMALL_BLOCK = 0.85, 0.9, 8


def block_mask(length: int, block: int) -> torch.Tensor:
    """What each position may attend to: blocks up to its own; additive [1, 1, length, length]."""
    index = torch.arange(length) // block
    visible = index[:, None] >= index[None, :]
    return torch.zeros(length, length).masked_fill(~visible, float("-inf"))[None, None]


def run(model: Any, tokens: torch.Tensor, block: int, **options: Any) -> Any:
    mask = block_mask(tokens.shape[1], block).expand(len(tokens), -1, -1, -1)
    return model(tokens, attention_mask=mask, use_cache=False, **options)


def _likeliest(model: Any, x: list[int], block: int, mask_id: int) -> tuple[Any, Any]:
    with torch.no_grad():
        logits = run(model, torch.tensor([x]), block).logits[0].clone()
    logits[:, mask_id] = float("-inf")
    share, token = logits.softmax(-1).max(-1)
    return token.tolist(), share.tolist()


def sdar(model: Any, prompt: list[int], count: int, block: int, mask_id: int) -> list[int]:
    total = -(-(len(prompt) + count) // block) * block
    x = prompt + [mask_id] * (total - len(prompt))
    for first in range(len(prompt) // block * block, total, block):
        for _ in range(block + 1):
            masked = [i for i in range(first, first + block) if x[i] == mask_id]
            if not masked:
                break
            token, share = _likeliest(model, x[: first + block], block, mask_id)
            sure = [i for i in masked if share[i] > SDAR_THRESHOLD]
            for i in sure or [max(masked, key=lambda i: share[i])]:
                x[i] = token[i]
    return x[: len(prompt) + count]


def fast_dllm(model: Any, prompt: list[int], count: int, block: int, mask_id: int) -> list[int]:
    x = list(prompt)
    while len(x) < len(prompt) + count:
        if len(x) % block == 0:
            x.append(_likeliest(model, x, block, mask_id)[0][-1])
        first = len(x) // block * block
        x += [mask_id] * (first + block - len(x))
        for start in range(first, first + block, SMALL_BLOCK):
            while masked := [i for i in range(start, start + SMALL_BLOCK) if x[i] == mask_id]:
                token, share = _likeliest(model, x, block, mask_id)
                best = max(masked, key=lambda i: share[i - 1])
                for i in masked:
                    if share[i - 1] > FAST_DLLM_THRESHOLD or i == best:
                        x[i] = token[i - 1]
    return x[: len(prompt) + count]


# The seed of each, and the model of transformers that it was made of.
SEEDS = {"sdar": (26, "qwen3"), "sdar-moe": (27, "qwen3_moe"), "fast-dllm": (28, "qwen2")}


def make(target: str, seed: int, made_of: str) -> None:
    published = json.loads((TARGETS / target / "config.json").read_text())
    model = random_model(TARGETS / target, seed, made_of)
    block, mask = published.get("block_size") or published["bd_size"], published["mask_token_id"]
    tokens = torch.randint(0, VOCAB, (2, 32))
    with torch.no_grad():
        output = run(model, tokens, block, output_hidden_states=True)
    program = fast_dllm if "bd_size" in published else sdar
    continued = program(model, tokens[0, :7].tolist(), CONTINUED, block, mask)
    save(target, tokens, output, torch.tensor([continued]))


def diffusion_gemma(model: Any, generation: Any, prompt: list[int], count: int) -> list[int]:
    """Complete a prompt as `generate` does, but for its random numbers, and greedily."""
    text, length = list(prompt), model.config.canvas_length
    vocabulary, steps = model.config.text_config.vocab_size, generation["max_denoising_steps"]
    bound = generation["sampler_config"]["entropy_bound"]
    while len(text) < len(prompt) + count:

        def noise(step: int, start: int = len(text)) -> torch.Tensor:
            drawn = random.Random(f"0 {start} {step}")
            return torch.tensor([[drawn.randrange(vocabulary) for _ in range(length)]])

        current, before, logits = noise(0), None, None
        for step in range(steps):
            spread = generation["t_max"] - generation["t_min"]
            temperature = generation["t_min"] + spread * (steps - step) / steps
            logits = canvas_logits(model, text, current, logits) / temperature
            argmax, entropy = logits.argmax(-1), Categorical(logits=logits).entropy()
            ordered, order = entropy.sort(dim=-1)
            selected = torch.zeros_like(entropy, dtype=torch.bool)
            selected.scatter_(-1, order, ordered.cumsum(-1) - ordered <= bound)
            current = torch.where(selected, argmax, noise(step + 1))
            stable = before is not None and bool((before == argmax).all())
            if stable and entropy.mean() < generation["confidence_threshold"]:
                break
            before = argmax
        text += argmax[0].tolist()
    return text[: len(prompt) + count]


def canvas_logits(model: Any, text: list[int], canvas: torch.Tensor, before: Any) -> torch.Tensor:
    """Scores of a canvas after a text, `before` being those of the last step."""
    with torch.no_grad():
        logits: torch.Tensor = model(
            torch.tensor([text]), decoder_input_ids=canvas, self_conditioning_logits=before
        ).logits
    return logits


def make_diffusion_gemma(seed: int) -> None:
    directory = TARGETS / "diffusion-gemma"
    kept = (directory / "config.json").read_text(), (directory / "generation_config.json")
    generation = json.loads(kept[1].read_text())
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(directory)
    model = DiffusionGemmaForBlockDiffusion(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer += 0.2 * torch.randn_like(buffer)
    text = kept[1].read_text()
    model.save_pretrained(directory)
    (directory / "config.json").write_text(kept[0])
    kept[1].write_text(text)
    model.eval()
    prompt = torch.randint(0, VOCAB, (7,)).tolist()
    canvases = [torch.randint(0, VOCAB, (1, config.canvas_length)) for _ in range(CANVAS_STEPS)]
    logits, steps = None, []
    for canvas in canvases:
        logits = canvas_logits(model, prompt, canvas, logits)
        steps.append(logits[0])
    np.savez_compressed(
        TARGETS.parent / "diffusion-gemma.npz",
        prompt=np.array(prompt),
        canvases=torch.cat(canvases).numpy(),
        logits=torch.stack(steps).numpy(),
        continued=np.array(diffusion_gemma(model, generation, prompt, CONTINUED)),
    )


if __name__ == "__main__":
    make_diffusion_gemma(29)
    for target, (seed, made_of) in SEEDS.items():
        make(target, seed, made_of)
