"""Makes the drafters: tiny, trained a little, and what they draft for the targets.

Speculative decoding is done here as it is published, one sequence at a time: `speculate` asks for a
block, lets transformers' target judge it, and keeps the tokens up to the first wrong one.

Run from the root of the project, after make_targets.py, for all or for some of them:
python -m tests.golden.make_drafters [NAME ...]
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.golden import torch_dflash, torch_dflash2, torch_dspark
from tests.golden.make_targets import TARGETS, VOCAB
from tests.golden.torch_eagle3 import chain_logits
from transformers import AutoModelForCausalLM

DRAFTERS = Path(__file__).parent / "drafters"
ROUNDS = 10
PROMPT = 6
# So far apart must the two likeliest tokens be wherever one is drafted: the service sends features
# in bfloat16, and a feature that is rounded the other way must not change a draft.
LEAST_DRAFT_MARGIN = 0.03
# The target's own choices need only survive float32.
LEAST_CHOICE_MARGIN = 0.003
# Few texts, so that a drafter learns most of them in few steps.
TEXTS, LENGTH, STEPS, BATCH = 24, 56, 900, 24

EAGLE3_STEPS = 4


def published(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((DRAFTERS / name / "config.json").read_text())
    return config


class Target:
    """A target as transformers loads it."""

    def __init__(self, name: str, outputs: list[int]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(TARGETS / name, dtype=torch.float32)
        self.embedding = self.model.get_input_embeddings().weight.detach()
        self.head = self.model.get_output_embeddings().weight.detach()
        self._outputs = outputs

    def __call__(self, tokens: Any) -> tuple[Any, Any]:
        """Logits and features of every position; the features as bfloat16 holds them."""
        with torch.no_grad():
            output = self.model(tokens, output_hidden_states=True)
        features = torch.cat([output.hidden_states[i + 1] for i in self._outputs], -1)
        return output.logits, features.bfloat16().float()

    def continued(self, prompts: Any) -> Any:
        """The prompts with the target's own continuation, `LENGTH` tokens in all."""
        tokens = prompts
        while tokens.shape[1] < LENGTH:
            tokens = torch.cat([tokens, self(tokens)[0][:, -1:].argmax(-1)], 1)
        return tokens


Draft = Callable[[Any, Any], Any]
"""Features of the final positions and all tokens, the anchor last -> logits of each draft."""


def speculate(target: Target, prompt: list[int], draft: Draft, ids: Any) -> dict[str, Any] | None:
    """Decode greedily for some rounds; say what was drafted and gained in each.

    It is None if some choice was close.
    """
    logits, features = target(torch.tensor([prompt]))
    if _margin(logits[0, -1:]) < LEAST_CHOICE_MARGIN:
        return None
    tokens = [*prompt, int(logits[0, -1].argmax())]
    drafts, gained = [], []
    for _ in range(ROUNDS):
        scores = draft(features, torch.tensor([tokens]))[0]
        if _margin(scores) < LEAST_DRAFT_MARGIN:
            return None
        drafts.append([int(ids[best]) for best in scores.argmax(-1)])
        logits, features = target(torch.tensor([[*tokens, *drafts[-1]]]))
        choices = logits[0, len(tokens) - 1 :]
        chosen = choices.argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafts[-1]) and drafts[-1][accepted] == chosen[accepted]:
            accepted += 1
        if _margin(choices[: accepted + 1]) < LEAST_CHOICE_MARGIN:
            return None
        tokens += chosen[: accepted + 1]
        gained.append(accepted + 1)
        # Those of the anchor and the accepted tokens are final; the new anchor has none yet.
        features = features[:, : len(tokens) - 1]
    return {"prompt": prompt, "tokens": tokens[len(prompt) :], "drafts": drafts, "gained": gained}


def _margin(logits: Any) -> float:
    first, second = logits.topk(2, -1).values.unbind(-1)
    return float((first - second).min())


def train(weights: dict[str, Any], loss: Callable[[], Any]) -> None:
    trained = [w.requires_grad_() for w in weights.values() if w.is_floating_point()]
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: {value.item():.3f}")
    for weight in trained:
        weight.requires_grad_(False)


def save(
    name: str,
    target_name: str,
    config: dict[str, Any],
    weights: dict[str, Any],
    prompts: list[list[int]],
    run: Callable[[dict[str, Any], list[int]], dict[str, Any] | None],
) -> None:
    """Write the weights, read them back, and record what they draft after clear-cut prompts."""
    directory = DRAFTERS / name
    dtype = getattr(torch, config.get("dtype") or config["torch_dtype"])
    stored = {k: w.to(dtype) if w.is_floating_point() else w for k, w in weights.items()}
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    loaded = {
        key: weight.float() if weight.is_floating_point() else weight
        for key, weight in load_file(directory / "model.safetensors").items()
    }
    sequences = [sequence for prompt in prompts if (sequence := run(loaded, prompt)) is not None]
    # Those with the most different rounds say the most.
    sequences.sort(key=lambda sequence: -len(set(sequence["gained"])))
    sequences = sequences[:3]
    for sequence in sequences:
        print(name, sequence["gained"])
    assert len(sequences) == 3
    text = json.dumps({"target": target_name, "sequences": sequences}) + "\n"
    (DRAFTERS / f"{name}.json").write_text(text)


def _random(*shape: int) -> Any:
    if len(shape) == 1:
        return 1 + 0.2 * torch.randn(shape)
    return torch.randn(shape) / math.sqrt(shape[1])


def layer(
    name: str, norms: Sequence[str], inputs: int, head_norms: Sequence[str] = ()
) -> dict[str, Any]:
    """Random weights of a layer whose attention takes so wide inputs."""
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(norms, (32,)),
        "self_attn.q_proj": (32, inputs),
        "self_attn.k_proj": (16, inputs),
        "self_attn.v_proj": (16, inputs),
        "self_attn.o_proj": (32, 32),
        **{f"self_attn.{norm}": (8,) for norm in head_norms},
        "mlp.gate_proj": (48, 32),
        "mlp.up_proj": (48, 32),
        "mlp.down_proj": (32, 48),
    }
    return {f"{name}.{part}.weight": _random(*shape) for part, shape in shapes.items()}


Scores = Callable[..., Any]
"""Weights, configuration, embedding, head, features, anchors and perhaps the true tokens -> logits
of each draft."""


def make_dflash(
    drafter: str,
    seed: int,
    added: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: {},
    logits: Scores = torch_dflash.draft_logits,
    scores: Scores | None = None,
    copies: bool = False,
) -> None:
    """A kind of DFlash with `added` weights, whose `scores` may be of drafts one after another.

    It may be published with `copies` of the target's embedding and head.
    """
    torch.manual_seed(seed)
    name, config = "qwen3", published(drafter)
    target = Target(name, config.get("dflash_config", config)["target_layer_ids"])
    weights = {
        "fc.weight": _random(32, 64),
        "hidden_norm.weight": _random(32),
        "norm.weight": _random(32),
    }
    for number in range(2):
        norms = ("input_layernorm", "post_attention_layernorm")
        weights |= layer(f"layers.{number}", norms, 32, ("q_norm", "k_norm"))
    weights |= added(config)
    texts = target.continued(torch.randint(0, VOCAB, (TEXTS, PROMPT)))
    features = target(texts)[1]
    block = config.get("block_size") or config["dflash_config"]["block_size"]
    parts = config, target.embedding, target.head

    def loss() -> Any:
        rows = torch.randint(0, len(texts), (BATCH,))
        at = int(torch.randint(PROMPT, LENGTH - block, ()))
        known = features[rows, :at], texts[rows, at]
        made = [logits(weights, *parts, *known)]
        labels = texts[rows, at + 1 : at + 1 + made[0].shape[1]]
        if scores is not None:
            made.append(scores(weights, *parts, *known, labels))
        return sum(
            torch.nn.functional.cross_entropy(each.flatten(0, 1), labels.flatten()) for each in made
        )

    train(weights, loss)
    if copies:
        weights["embed_tokens.weight"] = target.embedding.clone()
        weights["lm_head.weight"] = target.head.clone()

    def run(loaded: dict[str, Any], prompt: list[int]) -> dict[str, Any] | None:
        def draft(features: Any, tokens: Any) -> Any:
            return (scores or logits)(loaded, *parts, features, tokens[:, -1])

        return speculate(target, prompt, draft, range(VOCAB))

    save(drafter, name, config, weights, texts[:, :PROMPT].tolist(), run)


def dflash2_weights(config: dict[str, Any]) -> dict[str, Any]:
    own = config["dflash_config"]
    rank, corrections = own["selector_rank"], 4 * 32 // own["conv_group_size"]
    names = [f"layers.{n}.{part}_conv" for n in range(2) for part in ("attention", "mlp")]
    # Near the identity, where published training starts.
    identity = torch.tensor([1.0, 0.0])[None, :, None]
    return {
        **{f"{name}.base_kernel": identity + 0.2 * torch.randn(2, 2, 32) for name in names},
        **{f"{name}.kernel_projection.weight": 0.2 * _random(corrections, 32) for name in names},
        "candidate_selector.hidden_projection.weight": _random(rank, 32),
        "candidate_selector.predecessor_codebook": _random(VOCAB, rank),
        "candidate_selector.successor_codebook": _random(VOCAB, rank),
    }


def dspark_weights(config: dict[str, Any]) -> dict[str, Any]:
    rank = config["markov_rank"]
    return {
        "markov_head.markov_w1.weight": _random(VOCAB, rank),
        "markov_head.markov_w2.weight": _random(VOCAB, rank),
        "confidence_head.proj.weight": _random(1, 32 + rank),
        "confidence_head.proj.bias": torch.zeros(1),
    }


def make_eagle3(drafter: str, seed: int) -> None:
    torch.manual_seed(seed)
    name, config = "llama-untied-llama3-sharded", published(drafter)
    # What enters layers 2, 7 // 2 and 7 - 3: the outputs of the layers before.
    target = Target(name, [1, 2, 3])
    texts = target.continued(torch.randint(0, VOCAB, (TEXTS, PROMPT)))
    features = target(texts)[1]
    frequent = texts[:, PROMPT:].flatten().bincount(minlength=VOCAB).argsort(descending=True)
    ids = frequent[: config["draft_vocab_size"]].sort().values
    weights = {
        "fc.weight": _random(32, 96),
        "norm.weight": _random(32),
        "lm_head.weight": _random(len(ids), 32),
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.isin(torch.arange(VOCAB), ids),
    }
    weights |= layer("midlayer", ("input_layernorm", "hidden_norm", "post_attention_layernorm"), 64)
    if config.get("fc_norm"):
        weights |= {f"fc_norm.{index}.weight": _random(32) for index in range(3)}
    rank = torch.full((VOCAB,), -100)  # the label that cross_entropy leaves out
    rank[ids] = torch.arange(len(ids))

    def logits(weights: dict[str, Any], features: Any, tokens: Any, teacher: Any = None) -> Any:
        return chain_logits(
            weights, config, target.embedding, features, tokens, EAGLE3_STEPS, teacher
        )

    def loss() -> Any:
        rows = torch.randint(0, len(texts), (BATCH,))
        at = int(torch.randint(PROMPT, LENGTH - EAGLE3_STEPS, ()))
        labels = texts[rows, at + 1 : at + 1 + EAGLE3_STEPS]
        scores = logits(weights, features[rows, :at], texts[rows, 1 : at + 1], labels)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), rank[labels].flatten())

    train(weights, loss)

    def run(loaded: dict[str, Any], prompt: list[int]) -> dict[str, Any] | None:
        def draft(features: Any, tokens: Any) -> Any:
            return logits(loaded, features, tokens[:, 1:])

        return speculate(target, prompt, draft, ids)

    save(drafter, name, config, weights, texts[:, :PROMPT].tolist(), run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    makers = {
        "dflash": lambda: make_dflash("dflash", 1),
        "dflash2": lambda: make_dflash(
            "dflash2",
            4,
            dflash2_weights,
            torch_dflash2.draft_logits,
            torch_dflash2.draft_scores,
        ),
        "dspark": lambda: make_dflash(
            "dspark",
            5,
            dspark_weights,
            torch_dspark.draft_logits,
            torch_dspark.draft_scores,
            copies=True,
        ),
        "eagle3": lambda: make_eagle3("eagle3", 2),
        "eagle31": lambda: make_eagle3("eagle31", 3),
    }
    for chosen in sys.argv[1:] or makers:
        makers[chosen]()
