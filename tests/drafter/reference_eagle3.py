"""EAGLE-3 in float64 NumPy, one entry and one head at a time, from the published description.

No cache and no batch: every step runs the layer over all entries so far again. It is the oracle.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tests.drafter.reference_dflash import heads, rms_norm

from blockdraft_drafter.eagle3.config import Eagle3Config

Floats = NDArray[np.float64]


def reference_chain(
    params: Mapping[str, np.ndarray],
    config: Eagle3Config,
    embedding: np.ndarray,
    head: np.ndarray,
    draft_ids: Sequence[int],
    features: np.ndarray,
    tokens: Sequence[int],
    choose: Callable[[int, Floats], int] = lambda position, logits: int(np.argmax(logits)),
) -> tuple[list[int], list[Floats]]:
    """Draft `config.block_size - 1` tokens.

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
    states = list(np.asarray(features, np.float64) @ weights["fc.weight"].T)
    following = list(tokens[1:])
    chosen: list[int] = []
    scores: list[Floats] = []
    for index in range(config.block_size - 1):
        out = _layer(weights, config, table[following], np.array(states))[-1]
        logits = rms_norm(out, weights["norm.weight"], config.decoder.rms_norm_eps) @ rows.T
        chosen.append(int(draft_ids[choose(len(tokens) + index, logits)]))
        scores.append(logits)
        states.append(out)
        following.append(chosen[-1])
    return chosen, scores


def _layer(
    weights: Mapping[str, Floats], config: Eagle3Config, embedded: Floats, states: Floats
) -> Floats:
    """Return the output of each entry; one sees itself and those before it."""
    decoder, eps = config.decoder, config.decoder.rms_norm_eps
    e = rms_norm(embedded, weights["midlayer.input_layernorm.weight"], eps)
    h = rms_norm(states, weights["midlayer.hidden_norm.weight"], eps)
    both = np.concatenate([e, h], axis=1)
    q = heads(both, weights, "midlayer.self_attn.q_proj", decoder.num_heads)
    k = heads(both, weights, "midlayer.self_attn.k_proj", decoder.num_kv_heads)
    v = heads(both, weights, "midlayer.self_attn.v_proj", decoder.num_kv_heads)
    positions = np.arange(len(states))
    q, k = _rope(q, positions, decoder.rope_theta), _rope(k, positions, decoder.rope_theta)
    attended = np.zeros_like(q)
    for i in positions:
        for n in range(decoder.num_heads):
            mine = n // (decoder.num_heads // decoder.num_kv_heads)
            raw = k[: i + 1, mine] @ q[i, n] / np.sqrt(decoder.head_dim)
            share = np.exp(raw - raw.max())
            attended[i, n] = share / share.sum() @ v[: i + 1, mine]
    out = attended.reshape(len(states), -1) @ weights["midlayer.self_attn.o_proj.weight"].T
    x = (h if config.norm_before_residual else states) + out
    y = rms_norm(x, weights["midlayer.post_attention_layernorm.weight"], eps)
    gate, up = (y @ weights[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    result: Floats = (
        x + (gate / (1 + np.exp(-gate)) * up) @ weights["midlayer.mlp.down_proj.weight"].T
    )
    return result


def _rope(x: Floats, positions: NDArray[np.int64], theta: float) -> Floats:
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
