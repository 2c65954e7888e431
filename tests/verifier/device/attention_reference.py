"""Attention of a row of a step over its whole sequence, in float64."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from blockdraft_models.precision import rounded_to_fp8


@dataclass(frozen=True)
class Heads:
    count: int
    kv: int
    dim: int
    dtype: str = "float32"
    fp8: bool = False  # whether keys and values are
    latent: bool = False  # whether values are the keys

    def normal(self, rng: np.random.Generator, rows: int, heads: int) -> np.ndarray:
        values = rng.normal(0, 1, (rows, heads, self.dim)).astype(np.float32)
        return np.asarray(jnp.asarray(values, self.dtype), np.float32)


@dataclass(frozen=True)
class Row:
    """A sequence whose last tokens, as many as `q` has, are new."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @classmethod
    def random(cls, rng: np.random.Generator, heads: Heads, length: int, context: int) -> "Row":
        k, v = (heads.normal(rng, context, heads.kv) for _ in range(2))
        if heads.fp8:
            k, v = (np.asarray(rounded_to_fp8(jnp.asarray(x)), np.float32) for x in (k, v))
        return cls(heads.normal(rng, length, heads.count), k, k if heads.latent else v)

    def attended(
        self,
        window: int = 0,
        sinks: np.ndarray | None = None,
        canvas: int = 1,
        *,
        joint: bool = False,
    ) -> np.ndarray:
        """Return what its tokens see, in float64."""
        (length, heads, dim), (context, kv_heads, _) = self.q.shape, self.k.shape
        out = np.zeros(self.q.shape)
        for index, head in np.ndindex(length, heads):
            end = (context - length + index) // canvas * canvas + canvas
            first = max(0, end - window) if window else 0
            if joint:
                first, end = max(0, context - length + 1 - window) if window else 0, context
            seen = slice(first, end)
            key, value = (
                part[seen, head * kv_heads // heads].astype(np.float64) for part in (self.k, self.v)
            )
            scores = key @ self.q[index, head].astype(np.float64) / np.sqrt(dim)
            weights = np.exp(scores)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[head]))
            out[index, head] = weights @ value / total
        return out
