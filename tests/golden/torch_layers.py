"""The parts of a Llama or Qwen3 layer in plain PyTorch, from their published descriptions.

Weights are dictionaries by published name; nothing here knows of this project.
"""

from collections.abc import Mapping
from typing import Any

import torch

Weights = Mapping[str, Any]


def rms_norm(x: Any, scale: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


def rotate(x: Any, positions: Any, theta: float) -> Any:
    """Rotate [batch, tokens, heads, head_dim]: dimension i against i + head_dim / 2."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions.double()[:, None] * frequencies).float()[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attend(q: Any, k: Any, v: Any, visible: Any) -> Any:
    """Attend; `visible` is [queries, keys]. Returns [batch, queries, heads * head_dim]."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


def mlp(weights: Weights, name: str, x: Any) -> Any:
    gate = torch.nn.functional.silu(x @ weights[f"{name}.gate_proj.weight"].T)
    return (gate * (x @ weights[f"{name}.up_proj.weight"].T)) @ weights[
        f"{name}.down_proj.weight"
    ].T


def heads(weights: Weights, name: str, x: Any, head_dim: int) -> Any:
    return (x @ weights[f"{name}.weight"].T).unflatten(-1, (-1, head_dim))
