"""An EAGLE-3 or EAGLE-3.1 chain in plain PyTorch.

From the descriptions of SafeAILab/EAGLE `cnets.py` and, of EAGLE-3.1's `fc_norm` and `norm_output`,
of NVIDIA-NeMo/Automodel `nemo_automodel/components/speculative/eagle/draft_llama.py` at fb2f0e4.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tests.golden.torch_layers import Weights, attend, heads, mlp, rms_norm, rotate


def chain_logits(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    features: Any,
    tokens: Any,
    steps: int,
    teacher: Any = None,
) -> Any:
    """Logits over the draft vocabulary of each step of a chain.

    Every step runs the layer over all entries again; the last one's output is the next state.
    Features are [batch, context, features], tokens those after each position, the anchor last,
    [batch, context]. `teacher` has the tokens to go on with in training, [batch, steps]. Returns
    [batch, steps, draft vocabulary].
    """
    eps = config["rms_norm_eps"]
    if config.get("fc_norm"):
        outputs = features.split(config["hidden_size"], -1)
        features = torch.cat(
            [rms_norm(x, weights[f"fc_norm.{i}.weight"], eps) for i, x in enumerate(outputs)], -1
        )
    states, following = features @ weights["fc.weight"].T, tokens
    logits = []
    for step in range(steps):
        out = _layer(weights, config, embedding[following], states)[:, -1:]
        normalized = rms_norm(out[:, 0], weights["norm.weight"], eps)
        logits.append(normalized @ weights["lm_head.weight"].T)
        best = logits[-1].argmax(-1)
        drafted = best + weights["d2t"][best] if teacher is None else teacher[:, step]
        new = normalized[:, None] if config.get("norm_output") else out
        states = torch.cat([states, new], 1)
        following = torch.cat([following, drafted[:, None]], 1)
    return torch.stack(logits, 1)


def _layer(weights: Weights, config: Mapping[str, Any], embedded: Any, states: Any) -> Any:
    eps = config["rms_norm_eps"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    own, count = "midlayer.self_attn", states.shape[1]
    positions = torch.arange(count)
    both = torch.cat(
        [
            rms_norm(embedded, weights["midlayer.input_layernorm.weight"], eps),
            rms_norm(states, weights["midlayer.hidden_norm.weight"], eps),
        ],
        -1,
    )
    q, k, v = (heads(weights, f"{own}.{p}_proj", both, head_dim) for p in "qkv")
    q, k = (rotate(x, positions, config["rope_theta"]) for x in (q, k))
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    x = states + attend(q, k, v, causal) @ weights[f"{own}.o_proj.weight"].T
    h = rms_norm(x, weights["midlayer.post_attention_layernorm.weight"], eps)
    return x + mlp(weights, "midlayer.mlp", h)
