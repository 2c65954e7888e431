"""The published draft forward in float64 NumPy, one position and one head at a time.

Written from the description of z-lab/dflash alone: no cache, no buckets, no batch. Everything is
computed again from the raw features on every call. Slow and plain on purpose: it is the oracle.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.dflash.config import DFlashConfig

Floats = NDArray[np.float64]


def reference_draft(
    params: Mapping[str, np.ndarray],
    config: DFlashConfig,
    embedding: np.ndarray,
    head: np.ndarray | None,
    features: np.ndarray,
    anchor: int,
    block_size: int,
    choose: Callable[[int, Floats], int] = lambda position, logits: int(np.argmax(logits)),
) -> tuple[NDArray[np.int64], Floats]:
    """Draft one block.

    Args:
        params: Weights by published name, matrices [out, in].
        config: The drafter's configuration.
        embedding: The target's embedding, [vocab, hidden].
        head: The target's untied head, [vocab, hidden], or None when the embedding is the head.
        features: The target's features of positions 0, 1, ..., [context, feature_width].
        anchor: The token at position `context`.
        block_size: Tokens of the block, the anchor included.
        choose: Returns the token to draft at an absolute position, given its logits.

    Returns:
        The chosen token of each drafted position, [block_size - 1], and its logits,
        [block_size - 1, vocab].
    """
    drafted = block_size - 1
    if config.sample_from_anchor:
        # The anchor's slot drafts too: one mask fewer for as many tokens.
        block_size -= 1
    weights = {name: np.asarray(value, np.float64) for name, value in params.items()}
    decoder = config.decoder
    eps = decoder.rms_norm_eps
    table = np.asarray(embedding, np.float64)
    context_length = features.shape[0]
    positions = np.arange(context_length + block_size)

    context = rms_norm(
        np.asarray(features, np.float64) @ weights["fc.weight"].T,
        weights["hidden_norm.weight"],
        eps,
    )
    block = [anchor] + [config.mask_token_id] * (block_size - 1)
    x = table[block]
    for layer in range(decoder.num_layers):
        name = f"layers.{layer}."
        h = rms_norm(x, weights[name + "input_layernorm.weight"], eps)
        both = np.concatenate([context, h])
        q = heads(h, weights, name + "self_attn.q_proj", decoder.num_heads)
        k = heads(both, weights, name + "self_attn.k_proj", decoder.num_kv_heads)
        v = heads(both, weights, name + "self_attn.v_proj", decoder.num_kv_heads)
        q = rms_norm(q, weights[name + "self_attn.q_norm.weight"], eps)
        k = rms_norm(k, weights[name + "self_attn.k_norm.weight"], eps)
        q = rope(q, positions[context_length:], config)
        k = rope(k, positions, config)
        attended = attend(q, k, v, context_length, config, layer)
        out = attended.reshape(block_size, -1) @ weights[name + "self_attn.o_proj.weight"].T
        x = x + out + weights.get(name + "self_attn.o_proj.bias", 0.0)
        h = rms_norm(x, weights[name + "post_attention_layernorm.weight"], eps)
        gate = h @ weights[name + "mlp.gate_proj.weight"].T
        up = h @ weights[name + "mlp.up_proj.weight"].T
        x = x + (gate / (1.0 + np.exp(-gate)) * up) @ weights[name + "mlp.down_proj.weight"].T
    hidden = rms_norm(x, weights["norm.weight"], eps)[-drafted:]
    logits = hidden @ (table if head is None else np.asarray(head, np.float64)).T
    chosen = [anchor]
    for index, scores in enumerate(logits):
        if config.markov_rank:
            by_previous = weights["markov_head.markov_w1.weight"][chosen[-1]]
            scores += weights["markov_head.markov_w2.weight"] @ by_previous
        chosen.append(choose(context_length + 1 + index, scores))
    return np.array(chosen[1:]), logits


def rms_norm(x: Floats, scale: Floats, eps: float) -> Floats:
    """Normalize the last axis to unit mean square."""
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale
    return result


def heads(x: Floats, weights: Mapping[str, Floats], name: str, count: int) -> Floats:
    """Project and split into heads, [tokens, count, head_dim]."""
    projected = x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)
    return projected.reshape(x.shape[0], count, -1)


def rope(x: Floats, positions: NDArray[np.int64], config: DFlashConfig) -> Floats:
    """Rotate dimension i against dimension i + head_dim/2."""
    half = x.shape[-1] // 2
    result = np.empty_like(x)
    for i in range(half):
        angle = positions * config.decoder.rope_theta ** (-2.0 * i / x.shape[-1])
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        result[..., i] = x[..., i] * cos - x[..., i + half] * sin
        result[..., i + half] = x[..., i + half] * cos + x[..., i] * sin
    return result


def attend(
    q: Floats, k: Floats, v: Floats, context_length: int, config: DFlashConfig, layer: int
) -> Floats:
    """Attend from every block position to what it may see, head by head."""
    block_size, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    sliding = config.layer_types[layer] == "sliding_attention"
    result = np.zeros_like(q)
    for i in range(block_size):
        position = context_length + i
        visible = []
        for j in range(context_length + block_size):
            too_far = (
                sliding
                and config.sliding_window is not None
                and abs(position - j) >= config.sliding_window
            )
            hidden = config.is_causal and j > position
            if not too_far and not hidden:
                visible.append(j)
        for head in range(num_heads):
            scores = k[visible, head // group] @ q[i, head] / np.sqrt(head_dim)
            weights = np.exp(scores - scores.max())
            result[i, head] = weights / weights.sum() @ v[visible, head // group]
    return result
