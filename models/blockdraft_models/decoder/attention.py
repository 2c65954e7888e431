"""The seam between a decoder and its KV cache, and attention over whole sequences."""

from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LayerCache = TypeVar("LayerCache")


@runtime_checkable
class Attend(Protocol[LayerCache]):
    """One layer's attention over flat tokens: stores keys and values, then attends causally.

    The decoder does not know how tokens are grouped into sequences or where earlier keys are
    kept; whoever calls it does, and passes that knowledge in as an `Attend`.
    """

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerCache,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerCache]:
        """Attends.

        Args:
            q: Queries, normalized and rotated.
            k: Keys, normalized and rotated.
            v: Values.
            cache: This layer's cache, opaque to the decoder.

        Returns:
            The attended values of each query, and the cache including `k` and `v`. Scores are
            scaled by `head_dim ** -0.5`.
        """
        ...


@dataclass(frozen=True, slots=True)
class DenseAttend:
    """Causal attention of `batch` whole sequences of equal length, without a cache.

    Pad shorter sequences at the end: causality keeps padding out of the real tokens' results.

    Attributes:
        batch: Number of sequences.
        length: Tokens per sequence; tokens are flattened sequence by sequence.
    """

    batch: int
    length: int

    def __post_init__(self) -> None:
        """Refuse empty shapes."""
        if self.batch < 1 or self.length < 1:
            raise ValueError(f"batch and length must be positive: {self.batch}, {self.length}")

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerCache,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerCache]:
        """Attend within each sequence; return `cache` untouched.

        Raises:
            ValueError: If there are not exactly `batch * length` tokens.
        """
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
