"""A DFlash block in plain PyTorch, from the description of z-lab/dflash `dflash/model.py`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tests.golden.torch_layers import Weights, attend, heads, mlp, rms_norm, rotate


def draft_logits(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    head: Any,
    features: Any,
    anchors: Any,
) -> Any:
    """Logits of the drafted positions of a block after each context: [batch, block - 1, vocab].

    Embedding and head are the target's, [vocab, hidden]; features [batch, context, features],
    anchors [batch].
    """
    hidden = block_hidden(weights, config, embedding, features, anchors)
    return hidden[:, 1:] @ head.T


def _nothing(layer: str, sublayer: str, x: Any) -> Any:
    return (lambda y: y), (lambda y: y)


def block_hidden(
    weights: Weights,
    config: Mapping[str, Any],
    embedding: Any,
    features: Any,
    anchors: Any,
    around: Callable[[str, str, Any], Any] = _nothing,
) -> Any:
    """What the head reads at each input of a block: [batch, block, hidden].

    `around` gives what is done before and after a sublayer, by its normalized input.
    """
    own_config = config.get("dflash_config", config)
    eps, block = config["rms_norm_eps"], config.get("block_size") or own_config["block_size"]
    head_dim = config["head_dim"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    context = features.shape[1]
    positions = torch.arange(context + block)
    masks = torch.full((anchors.shape[0], block - 1), own_config["mask_token_id"])
    x = embedding[torch.cat([anchors[:, None], masks], 1)]
    ctx = rms_norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    for layer, kind in enumerate(config["layer_types"]):
        name = f"layers.{layer}"
        own = f"{name}.self_attn"
        h = rms_norm(x, weights[f"{name}.input_layernorm.weight"], eps)
        before, after = around(name, "attention", h)
        h = before(h)
        both = torch.cat([ctx, h], 1)  # the context passes through no input norm
        q = heads(weights, f"{own}.q_proj", h, head_dim)
        k, v = (heads(weights, f"{own}.{p}_proj", both, head_dim) for p in "kv")
        q = rms_norm(q, weights[f"{own}.q_norm.weight"], eps)
        k = rms_norm(k, weights[f"{own}.k_norm.weight"], eps)
        q, k = rotate(q, positions[context:], theta), rotate(k, positions, theta)
        visible = torch.ones(block, context + block, dtype=torch.bool)
        if kind == "sliding_attention":
            distance = positions[context:, None] - positions[None, :]
            visible = distance.abs() < config["sliding_window"]
        x = x + after(attend(q, k, v, visible) @ weights[f"{own}.o_proj.weight"].T)
        h = rms_norm(x, weights[f"{name}.post_attention_layernorm.weight"], eps)
        before, after = around(name, "mlp", h)
        x = x + after(mlp(weights, f"{name}.mlp", before(h)))
    return rms_norm(x, weights["norm.weight"], eps)
