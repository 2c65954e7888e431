"""The interface of a decoder to its KV cache, and attention over whole sequences."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS, DeltaInputs, DeltaWeights, chunk

LayerCache = TypeVar("LayerCache")


class Reach(NamedTuple):
    """The part of the context that the queries of a layer see."""

    window: int = 0  # keys so many positions or more before a query are invisible; 0 for none
    # Bool[Array, ""], whether the window is there, where that differs between layers of a scan.
    applies: Array | None = None
    # Float[Array, "heads"], or None: the score of one more key, whose value is zero (gpt-oss).
    sinks: Array | None = None
    # Whether keys and values are those of the last layer of this form that has its own (Gemma 4):
    # they are in the cache.
    stored: bool = False
    # Positions of a canvas: those of one see each other, and all before them (block diffusion).
    canvas: int = 1

    def last(self, query: Int[Array, "..."]) -> Int[Array, "..."]:
        """Return the last position that the query at each position sees."""
        return query if self.canvas == 1 else (query // self.canvas + 1) * self.canvas - 1

    def sees(
        self, key: Int[Array, "..."], query: Int[Array, "..."], first: Int[Array, "..."]
    ) -> Bool[Array, "..."]:
        """Return whether queries see keys, given the positions of both, which broadcast.

        The window of a query reaches back from `first`, mostly its own position.
        """
        visible = key <= self.last(query)
        if not self.window:
            return visible
        near = first - key < self.window
        return visible & (near if self.applies is None else near | ~self.applies)

    def first(self, position: Int[Array, ""]) -> Int[Array, ""]:
        """Return the first position that the query at `position` sees, in a layer with a window."""
        start = jnp.maximum(position - self.window + 1, 0)
        return start if self.applies is None else jnp.where(self.applies, start, 0)


class SideInputs(NamedTuple):
    """The inputs of a layer beside the residual stream; None where there are none (Gemma 4)."""

    # Keys and values of another layer, for one without: Float[Array, "tokens kv_heads head_dim"].
    kv: tuple[Array, Array] | None = None
    embedded: Array | None = None  # Float[Array, "tokens width"], the layer's own for each token
    joint: Array | None = None  # Bool[Array, "tokens"], whether each token is of a canvas


NO_SIDE_INPUTS = SideInputs()

EVERYTHING = Reach()
"""The reach of most layers: all positions up to that of the query."""


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
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerCache]:
        """Return the attention of each query, and this layer's cache including `k` and `v`.

        Queries and keys come normalized and rotated; scores are scaled by `head_dim ** -0.5`.
        """
        ...


@runtime_checkable
class Recur(Protocol[LayerCache]):
    """One layer's recurrence over flat tokens, of an `Attend` that also keeps states."""

    def recur(
        self, weights: DeltaWeights, inputs: DeltaInputs, cache: LayerCache, /
    ) -> tuple[Float[Array, "tokens value_heads value_dim"], LayerCache]:
        """Return the outputs, in the element type of the inputs, and the updated cache."""
        ...


class KeptKV(Generic[LayerCache]):
    """An `Attend` that keeps the keys and values of its last call, for layers that share them."""

    def __init__(self, attend: Attend[LayerCache]) -> None:
        """Attend by `attend`."""
        self._attend = attend
        self.kv: tuple[Array, Array] | None = None

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: LayerCache,
        reach: Reach = EVERYTHING,
        /,
    ) -> tuple[Float[Array, "tokens heads head_dim"], LayerCache]:
        """Return the attention and the updated cache."""
        self.kv = k, v
        return self._attend(q, k, v, cache, reach)


def softmax(
    scores: Float[Array, "batch kv_heads group queries keys"], sinks: Float[Array, " heads"] | None
) -> Float[Array, "batch kv_heads group queries keys"]:
    """Return the weights of the keys; with sinks, each head's takes a part of their sum.

    `group` query heads share a key head.
    """
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sink = sinks.astype(scores.dtype).reshape(*scores.shape[1:3], 1, 1)
    column = jnp.broadcast_to(sink, (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, column], axis=-1), axis=-1)[..., :-1]


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
        reach: Reach = EVERYTHING,
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
        place = jnp.arange(self.length, dtype=jnp.int32)
        visible = reach.sees(place[None, :], place[:, None], place[:, None])
        scores = jnp.where(visible[None, None, None], scores * head_dim**-0.5, -jnp.inf)
        weights = softmax(scores, reach.sinks).astype(v.dtype)
        attended = jnp.einsum("bkgqs,bskd->bqkgd", weights, values)
        return attended.reshape(tokens, heads, head_dim), cache

    def recur(
        self, weights: DeltaWeights, inputs: DeltaInputs, cache: LayerCache, /
    ) -> tuple[Float[Array, "tokens value_heads value_dim"], LayerCache]:
        """Compute each sequence from an empty state, chunk by chunk; return `cache` untouched."""
        padding, lead = -self.length % CHUNK_TOKENS, weights.lead

        def of_sequence(inputs: DeltaInputs) -> Array:
            padded = jax.tree.map(
                lambda x: jnp.pad(x, ((lead, padding), *((0, 0),) * (x.ndim - 1))), inputs
            )
            _, heads, width = inputs.value.shape

            def step(state: Array, start: Array) -> tuple[Array, Array]:
                window = jax.tree.map(
                    lambda x: jax.lax.dynamic_slice_in_dim(x, start, lead + CHUNK_TOKENS), padded
                )
                outputs, state = chunk(weights, state, window)
                return state, outputs

            state = jnp.zeros((heads, inputs.key.shape[-1], width), jnp.float32)
            starts = jnp.arange(0, self.length, CHUNK_TOKENS, dtype=jnp.int32)
            _, outputs = jax.lax.scan(step, state, starts)
            return outputs.reshape(-1, heads, width)[: self.length]

        sequences = jax.tree.map(lambda x: x.reshape(self.batch, self.length, *x.shape[1:]), inputs)
        outputs = jax.lax.map(of_sequence, sequences)
        return outputs.reshape(inputs.value.shape).astype(inputs.value.dtype), cache
