"""The published drafts in float64 NumPy, one position and one head at a time.

Written from the descriptions of z-lab/dflash and SafeAILab/EAGLE alone: no cache, no buckets, no
batch. Everything is computed again from the raw features on every call. Slow and plain on purpose:
it is the oracle.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_models.decoder.config import DecoderConfig

Floats = NDArray[np.float64]
Choose = Callable[[int, Floats], int]


def likeliest(position: int, logits: Floats) -> int:
    return int(np.argmax(logits))


def reference_draft(
    params: Mapping[str, np.ndarray],
    config: DFlashConfig,
    embedding: np.ndarray,
    head: np.ndarray | None,
    features: np.ndarray,
    anchor: int,
    block_size: int,
    choose: Choose = likeliest,
) -> tuple[NDArray[np.int64], Floats]:
    """Draft one block of DFlash.

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
    raw = np.asarray(features, np.float64) @ weights["fc.weight"].T
    context = rms_norm(raw, weights["hidden_norm.weight"], eps)
    x = table[[anchor] + [config.mask_token_id] * (block_size - 1)]
    for layer in range(decoder.num_layers):
        name = f"layers.{layer}."
        h = rms_norm(x, weights[name + "input_layernorm.weight"], eps)
        of_attention = kernels(h, weights, name + "attention_conv.", config.conv_group_size)
        h = convolve(h, of_attention[0])
        both = np.concatenate([context, h])
        q = heads(h, weights, name + "self_attn.q_proj", decoder.num_heads)
        k = heads(both, weights, name + "self_attn.k_proj", decoder.num_kv_heads)
        v = heads(both, weights, name + "self_attn.v_proj", decoder.num_kv_heads)
        q = rms_norm(q, weights[name + "self_attn.q_norm.weight"], eps)
        k = rms_norm(k, weights[name + "self_attn.k_norm.weight"], eps)
        q, k = rope(q, positions[context_length:], decoder), rope(k, positions, decoder)
        sliding = config.layer_types[layer] == "sliding_attention"
        window = config.sliding_window if sliding else None
        attended = attend(q, k, v, window=window, is_causal=config.is_causal)
        out = attended.reshape(block_size, -1) @ weights[name + "self_attn.o_proj.weight"].T
        out = out + weights.get(name + "self_attn.o_proj.bias", 0.0)
        x = x + convolve(out, of_attention[1])
        h = rms_norm(x, weights[name + "post_attention_layernorm.weight"], eps)
        of_mlp = kernels(h, weights, name + "mlp_conv.", config.conv_group_size)
        x = x + convolve(mlp(convolve(h, of_mlp[0]), weights, name), of_mlp[1])
    hidden = rms_norm(x, weights["norm.weight"], eps)[-drafted:]
    logits = hidden @ (table if head is None else np.asarray(head, np.float64)).T
    logits *= config.output_multiplier
    if config.final_logit_softcapping:
        logits = np.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
    chosen = [anchor]
    for index, scores in enumerate(logits):
        if config.markov_rank:
            by_previous = weights["markov_head.markov_w1.weight"][chosen[-1]]
            scores += weights["markov_head.markov_w2.weight"] @ by_previous
        if config.selector_rank:
            scores = selected(weights, config, hidden[index], scores, chosen[-1])
        chosen.append(choose(context_length + 1 + index, scores))
    return np.array(chosen[1:]), logits


def kernels(
    h: Floats, weights: Mapping[str, Floats], name: str, group_size: int
) -> tuple[Floats, Floats]:
    """Return the kernels before and after a sublayer, each [taps, tokens, hidden]."""
    identity = np.stack([np.ones_like(h), np.zeros_like(h)])
    if not group_size:
        return identity, identity
    found = np.zeros((2, 2, *h.shape))
    groups = h.shape[1] // group_size
    for side in range(2):
        for tap in range(2):
            for channel in range(h.shape[1]):
                row = (2 * side + tap) * groups + channel // group_size
                correction = h @ weights[name + "kernel_projection.weight"][row]
                base = weights[name + "base_kernel"][side, tap, channel]
                found[side, tap, :, channel] = base + correction
    return found[0], found[1]


def convolve(x: Floats, kernel: Floats) -> Floats:
    """Add to each position what comes from the one before it; before the first are zeros."""
    result: Floats = kernel[0] * x
    result[1:] += kernel[1, 1:] * x[:-1]
    return result


def selected(
    weights: Mapping[str, Floats], config: DFlashConfig, hidden: Floats, logits: Floats, before: int
) -> Floats:
    """Return the scores of the likeliest tokens after a token, and -inf for all others."""
    gate = weights["candidate_selector.hidden_projection.weight"] @ hidden
    gate = gate * weights["candidate_selector.predecessor_codebook"][before]
    scores = np.full_like(logits, -np.inf)
    for token in np.argsort(-logits)[: config.selector_top_k]:
        pair = gate @ weights["candidate_selector.successor_codebook"][token]
        scores[token] = logits[token] + pair
    return scores


def reference_chain(
    params: Mapping[str, np.ndarray],
    config: Eagle3Config,
    embedding: np.ndarray,
    head: np.ndarray,
    draft_ids: Sequence[int],
    features: np.ndarray,
    tokens: Sequence[int],
    choose: Choose = likeliest,
) -> tuple[list[int], list[Floats]]:
    """Draft `config.block_size - 1` tokens of EAGLE-3: all entries so far again at every step.

    Args:
        params: Weights by published name, matrices [out, in].
        config: The drafter's configuration.
        embedding: The target's, [vocab, hidden].
        head: [draft, hidden].
        draft_ids: The target id of each row of the head.
        features: The target's, of positions 0, 1, ..., [context, feature_width].
        tokens: Tokens at positions 0, 1, ..., context: the last one is the anchor.
        choose: Returns the row of the head to draft at an absolute position, given the logits.

    Returns:
        The drafted tokens, and the logits each was chosen from, [draft].
    """
    weights = {name: np.asarray(value, np.float64) for name, value in params.items()}
    table, rows = np.asarray(embedding, np.float64), np.asarray(head, np.float64)
    # Entry i holds what is known of position i and the token after it.
    eps = config.decoder.rms_norm_eps
    captured = np.asarray(features, np.float64)
    if config.fc_norm:
        each = np.split(captured, len(config.target_layer_ids), axis=1)
        scales = [weights[f"fc_norm.{index}.weight"] for index in range(len(each))]
        captured = np.hstack([rms_norm(*pair, eps) for pair in zip(each, scales, strict=True)])
    if config.norm_before_fc:
        captured = rms_norm(captured, weights["input_norm.weight"], eps)
    states = list(captured @ weights["fc.weight"].T)
    following = list(tokens[1:])
    chosen: list[int] = []
    scores: list[Floats] = []
    for index in range(config.block_size - 1):
        out = _chain_layer(weights, config, table[following], np.array(states))
        normalized = rms_norm(out, weights["norm.weight"], eps)
        logits = normalized @ rows.T
        chosen.append(int(draft_ids[choose(len(tokens) + index, logits)]))
        scores.append(logits)
        states.append(normalized if config.norm_output else out)
        following.append(chosen[-1])
    return chosen, scores


def _chain_layer(
    weights: Mapping[str, Floats], config: Eagle3Config, embedded: Floats, states: Floats
) -> Floats:
    """Return the output of the last entry, which sees itself and those before it."""
    decoder, eps = config.decoder, config.decoder.rms_norm_eps
    e = rms_norm(embedded, weights["midlayer.input_layernorm.weight"], eps)
    h = rms_norm(states, weights["midlayer.hidden_norm.weight"], eps)
    both = np.concatenate([e, h], axis=1)
    q = heads(both[-1:], weights, "midlayer.self_attn.q_proj", decoder.num_heads)
    k = heads(both, weights, "midlayer.self_attn.k_proj", decoder.num_kv_heads)
    v = heads(both, weights, "midlayer.self_attn.v_proj", decoder.num_kv_heads)
    if decoder.qk_norm:
        q = rms_norm(q, weights["midlayer.self_attn.q_norm.weight"], eps)
        k = rms_norm(k, weights["midlayer.self_attn.k_norm.weight"], eps)
    positions = np.arange(len(states))
    q, k = rope(q, positions[-1:], decoder), rope(k, positions, decoder)
    attended = attend(q, k, v, window=None, is_causal=True)
    out = attended.reshape(-1) @ weights["midlayer.self_attn.o_proj.weight"].T
    x = (h if config.norm_before_residual else states)[-1] + out
    y = rms_norm(x, weights["midlayer.post_attention_layernorm.weight"], eps)
    result: Floats = x + mlp(y, weights, "midlayer.")
    return result


def rms_norm(x: Floats, scale: Floats, eps: float) -> Floats:
    """Normalize the last axis to unit mean square."""
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale
    return result


def heads(x: Floats, weights: Mapping[str, Floats], name: str, count: int) -> Floats:
    """Project and split into heads, [tokens, count, head_dim]."""
    projected = x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)
    return projected.reshape(x.shape[0], count, -1)


def mlp(x: Floats, weights: Mapping[str, Floats], name: str) -> Floats:
    gate, up = (x @ weights[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    result: Floats = (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}mlp.down_proj.weight"].T
    return result


def rope(x: Floats, positions: NDArray[np.int64], decoder: DecoderConfig) -> Floats:
    """Rotate dimension i against dimension i + head_dim/2."""
    half = x.shape[-1] // 2
    result = np.empty_like(x)
    for i in range(half):
        angle = positions * decoder.rope_theta ** (-2.0 * i / x.shape[-1])
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        result[..., i] = x[..., i] * cos - x[..., i + half] * sin
        result[..., i + half] = x[..., i + half] * cos + x[..., i] * sin
    return result


def attend(q: Floats, k: Floats, v: Floats, *, window: int | None, is_causal: bool) -> Floats:
    """Attend from queries at the last of the keys, each [positions, heads, head_dim].

    Keys as far away as `window`, or further, are not seen, nor are later ones if `is_causal`.
    """
    count, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    result = np.zeros(q.shape)
    for query in range(count):
        at = len(k) - count + query
        seen = [
            position
            for position in range(len(k))
            if (window is None or abs(at - position) < window) and not (is_causal and position > at)
        ]
        for head in range(num_heads):
            scores = k[seen, head // group] @ q[query, head] / np.sqrt(head_dim)
            weights = np.exp(scores - scores.max())
            result[query, head] = weights / weights.sum() @ v[seen, head // group]
    return result
