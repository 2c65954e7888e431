"""A DFlash 2 block in plain PyTorch, from the descriptions of two publications.

They are z-lab/dflash `dflash/model.py` at 1012959 and NVIDIA-NeMo/Automodel
`nemo_automodel/components/speculative/dflash/draft_qwen3_dflash2.py` at c711da9.
"""

from collections.abc import Callable, Mapping
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
    """Logits of the drafted positions before the selector: [batch, block - 1, vocab]."""
    return _hidden_and_logits(weights, config, embedding, head, features, anchors)[1]


def draft_scores(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    head: Any,
    features: Any,
    anchors: Any,
    teacher: Any = None,
) -> Any:
    """Scores of each draft of a block, after the best of the one before it.

    They are -inf for tokens that are no candidates. `teacher` has the tokens to go on with in
    training, [batch, block - 1]; then all tokens are candidates. Returns [batch, block - 1, vocab].
    """
    own = config["dflash_config"]
    hidden, logits = _hidden_and_logits(weights, config, embedding, head, features, anchors)
    codes = {
        name: weights[f"candidate_selector.{name}_codebook"]
        for name in ("predecessor", "successor")
    }
    gates = hidden @ weights["candidate_selector.hidden_projection.weight"].T
    scores, before = [], anchors
    for position in range(hidden.shape[1]):
        gate = gates[:, position] * codes["predecessor"][before]
        unary = logits[:, position]
        every = unary + gate @ codes["successor"].T
        if teacher is None:
            likeliest = unary.topk(own["selector_top_k"], -1).indices
            kept = torch.zeros_like(unary, dtype=torch.bool).scatter(-1, likeliest, True)
            every = every.masked_fill(~kept, float("-inf"))
        scores.append(every)
        before = every.argmax(-1) if teacher is None else teacher[:, position]
    return torch.stack(scores, 1)


def _hidden_and_logits(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    head: Any,
    features: Any,
    anchors: Any,
) -> tuple[Any, Any]:
    own = config["dflash_config"]
    around = _convolutions(weights, own)
    hidden = block_hidden(weights, config, embedding, features, anchors, around)[:, 1:]
    logits, bound = hidden @ head.T * own["output_multiplier"], own["final_logit_softcapping"]
    return hidden, torch.tanh(logits / bound) * bound


def _convolutions(
    weights: Weights, own: Mapping[str, Any]
) -> Callable[[str, str, Any], tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    def around(layer: str, sublayer: str, x: Any) -> Any:
        """The convolutions before and after a sublayer with this normalized input."""
        name = f"{layer}.{sublayer}_conv"
        dynamic = x @ weights[f"{name}.kernel_projection.weight"].T
        dynamic = dynamic.unflatten(-1, (2, own["conv_kernel_size"], -1))
        dynamic = dynamic.repeat_interleave(own["conv_group_size"], -1)
        kernel = weights[f"{name}.base_kernel"] + dynamic

        def convolution(side: int) -> Callable[[Any], Any]:
            def convolve(y: Any) -> Any:
                previous = torch.cat([torch.zeros_like(y[:, :1]), y[:, :-1]], 1)
                return kernel[:, :, side, 0] * y + kernel[:, :, side, 1] * previous

            return convolve

        return convolution(0), convolution(1)

    return around
