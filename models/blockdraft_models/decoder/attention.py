"""The seam between a decoder and its KV cache, attention over whole sequences, and positions."""

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.config import DecoderConfig, RopeScaling

LayerCache = TypeVar("LayerCache")


@runtime_checkable
class Attend(Protocol[LayerCache]):
    """One layer's attention over flat tokens: stores keys and values, then attends causally.

    The decoder does not know how tokens are grouped into sequences or where earlier keys are
    kept; its caller does, and passes that knowledge in as an `Attend`.
    """

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerCache,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerCache]:
        """Return what each query attends to, and this layer's cache including `k` and `v`.

        Queries and keys come normalized and rotated; scores are scaled by `head_dim ** -0.5`.
        """
        ...


@dataclass(frozen=True, slots=True)
class DenseAttend:
    """Causal attention of `batch` whole sequences of `length` tokens, without a cache.

    Tokens are flattened sequence by sequence. Pad shorter sequences at the end: causality keeps
    padding out of the real tokens' results.
    """

    batch: int
    length: int

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerCache,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerCache]:
        """Attend within each sequence; return `cache` untouched."""
        tokens, heads, head_dim = q.shape
        if tokens != self.batch * self.length:
            raise ValueError(f"expected {self.batch} x {self.length} tokens, got {tokens}")
        grouped = (self.batch, self.length, k.shape[1])
        queries = q.reshape(*grouped, heads // k.shape[1], head_dim)
        keys, values = k.reshape(*grouped, head_dim), v.reshape(*grouped, head_dim)
        scores = jnp.einsum("bqkgd,bskd->bkgqs", queries, keys, preferred_element_type=jnp.float32)
        causal = jnp.tril(jnp.ones((self.length, self.length), jnp.bool_))
        scores = jnp.where(causal[None, None, None], scores * head_dim**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        attended = jnp.einsum("bkgqs,bskd->bqkgd", weights, values)
        return attended.reshape(tokens, heads, head_dim), cache


def base_frequencies(head_dim: int, theta: float) -> Float[np.ndarray, " half"]:
    """Return `theta ** (-2i / head_dim)`, radians per token, in float64."""
    return theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def scaling_divisors(
    frequencies: Float[np.ndarray, " half"], scaling: RopeScaling
) -> Float[np.ndarray, " half"]:
    """Return by how much Llama 3 slows each rotary frequency: 1 to `scaling.factor`, float64."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    smooth = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    kept = np.clip(smooth, 0.0, 1.0)
    return 1.0 / (kept + (1.0 - kept) / scaling.factor)


def rotary_tables(
    config: DecoderConfig, positions: Int[Array, " tokens"]
) -> tuple[Float[Array, "tokens half"], Float[Array, "tokens half"]]:
    """Return the cosine and sine of every token's rotations, once for all layers.

    In float32: bfloat16 would rotate neighbouring positions beyond a few hundred by equal angles.
    """
    frequencies = base_frequencies(config.head_dim, config.rope_theta)
    if config.rope_scaling is not None:
        frequencies = frequencies / scaling_divisors(frequencies, config.rope_scaling)
    inverse = jnp.asarray(frequencies.astype(np.float32))
    angles = positions.astype(jnp.float32)[:, None] * inverse[None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "tokens heads head_dim"],
    cos: Float[Array, "tokens half"],
    sin: Float[Array, "tokens half"],
) -> Float[Array, "tokens heads head_dim"]:
    """Rotate dimension i against dimension i + head_dim/2 of every head, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
