"""A DSpark block in plain PyTorch, with the head type "vanilla".

From the descriptions of deepseek-ai/DeepSpec `deepspec/modeling/dspark/qwen3/modeling.py` at
5905deb and `deepspec/eval/dspark/evaluator.py` at 3bc8dc7, and of the head in sgl-project/SpecForge
`specforge/modeling/draft/dspark_heads.py` at 87abca1.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tests.golden.torch_dflash import block_hidden
from tests.golden.torch_layers import Weights


def draft_logits(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    head: Any,
    features: Any,
    anchors: Any,
) -> Any:
    """Logits of each draft without the head's bias: [batch, block, vocab].

    The anchor's output is the first of them. A drafter that has an embedding and a head of its own
    takes no others.
    """
    embedding = weights.get("embed_tokens.weight", embedding)
    hidden = block_hidden(weights, config, embedding, features, anchors)
    return hidden @ weights.get("lm_head.weight", head).T


def draft_scores(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    head: Any,
    features: Any,
    anchors: Any,
    teacher: Any = None,
) -> Any:
    """Logits of each draft after the best of the one before it: [batch, block, vocab].

    `teacher` has the tokens to go on with in training, [batch, block].
    """
    first, second = (weights[f"markov_head.markov_w{n}.weight"] for n in (1, 2))
    scores, before = [], anchors
    logits = draft_logits(weights, config, embedding, head, features, anchors)
    for position in range(logits.shape[1]):
        scores.append(logits[:, position] + first[before] @ second.T)
        before = scores[-1].argmax(-1) if teacher is None else teacher[:, position]
    return torch.stack(scores, 1)
