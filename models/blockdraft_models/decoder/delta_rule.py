"""The gated delta rule, chunk by chunk (Yang et al. 2025, arXiv 2412.06464 and 2406.06484).

A layer keeps a matrix for each head, its *state*. Each token lets it fade, and changes what it
returns for the token's key towards the token's value. Keys, values and queries come out of a short
causal convolution.

Positions are divided into chunks of a fixed number. A chunk is always computed as a whole, from the
state before it and what is there of its inputs, by the same operations of the same shapes. What is
not there yet, or was wrong, comes later in the order of every sum and has a factor of zero. So
a position's bits depend on nothing but the positions up to it (docs/adr/0064).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from blockdraft_models.decoder.products import row_sums

CHUNK_TOKENS = 32
"""Positions of a chunk."""
_LENGTH_EPS = 1e-6  # added to the square of a vector's length, as the models were trained

_product = partial(
    jnp.einsum, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


class DeltaInputs(NamedTuple):
    """The inputs of a layer's recurrence, of each token; a pytree.

    The first three come before the convolution, the others before their non-linearity.
    """

    query: Any  # Float[Array, "tokens key_heads key_dim"]
    key: Any  # Float[Array, "tokens key_heads key_dim"]
    value: Any  # Float[Array, "tokens value_heads value_dim"]
    decay: Any  # Float[Array, "tokens value_heads"]
    rate: Any  # Float[Array, "tokens value_heads"]


class DeltaWeights(NamedTuple):
    """The weights of a layer's recurrence: taps of convolutions, the last for the newest token."""

    query: Any  # Float[Array, "key_heads key_dim taps"]
    key: Any  # Float[Array, "key_heads key_dim taps"]
    value: Any  # Float[Array, "value_heads value_dim taps"]
    log_decay: Any  # Float[Array, "value_heads"]
    decay_bias: Any  # Float[Array, "value_heads"]

    @property
    def lead(self) -> int:
        """Positions before a chunk that its convolutions reach back to."""
        return int(self.query.shape[-1]) - 1


def chunk(
    weights: DeltaWeights,
    state: Float[Array, "value_heads key_dim value_dim"],
    inputs: DeltaInputs,
) -> tuple[
    Float[Array, "chunk value_heads value_dim"], Float[Array, "value_heads key_dim value_dim"]
]:
    """Return the outputs of a chunk, in float32, and the state after it.

    `inputs` are those of `weights.lead` positions before the chunk and of the chunk, zeros before
    the first token. Those of later positions may be any; zeros are there before their time.
    """
    # Nothing of what comes before may be fused with what has the same shapes in every step.
    weights, state, inputs = jax.lax.optimization_barrier((weights, state, inputs))
    weights, inputs = jax.tree.map(lambda x: x.astype(jnp.float32), (weights, inputs))
    query, key, value, decay, rate = inputs
    query = _unit(_convolved(query, weights.query)) * query.shape[-1] ** -0.5
    key, value = _unit(_convolved(key, weights.key)), _convolved(value, weights.value)
    group = value.shape[0] // key.shape[0]
    # Of each value head: queries above keys, [heads, 2 * chunk, width].
    both = jnp.repeat(jnp.concatenate([query, key], axis=1), group, axis=0)
    key = both[:, CHUNK_TOKENS:]

    rate = jax.nn.sigmoid(rate[weights.lead :].T)[..., None]
    steps = jax.nn.softplus(decay[weights.lead :].T + weights.decay_bias[:, None])
    steps = steps * -jnp.exp(weights.log_decay)[:, None]
    place = jnp.arange(CHUNK_TOKENS)
    not_later = (place[None, :] <= place[:, None])[None]
    earlier = (place[None, :] < place[:, None])[None]
    total = row_sums(jnp.where(not_later, steps[:, None, :], 0.0))[..., None]
    fading = jnp.exp(jnp.where(not_later, total - total.swapaxes(1, 2), -jnp.inf))
    faded = jnp.exp(total)

    recalled = _product("hck,hkv->hcv", both, state) * jnp.concatenate([faded, faded], axis=1)
    scores = _product("hck,hdk->hcd", both, key) * jnp.concatenate([fading, fading], axis=1)
    of_queries, of_keys = scores[:, :CHUNK_TOKENS], scores[:, CHUNK_TOKENS:]
    change = _product(
        "hcd,hdv->hcv",
        _unit_lower_inverse(jnp.where(earlier, of_keys * rate, 0.0)),
        (value - recalled[:, CHUNK_TOKENS:]) * rate,
    )
    outputs = recalled[:, :CHUNK_TOKENS] + _product("hcd,hdv->hcv", of_queries, change)
    left = key * fading[:, -1, :, None]
    state = state * faded[:, -1:] + _product("hck,hcv->hkv", left, change)
    outputs, state = jax.lax.optimization_barrier((outputs.swapaxes(0, 1), state))
    return outputs, state


def _convolved(
    x: Float[Array, "lead_and_chunk heads width"], taps: Float[Array, "heads width taps"]
) -> Float[Array, "heads chunk width"]:
    total = jnp.zeros((), jnp.float32)
    for tap in range(taps.shape[-1]):
        total = total + x[tap : tap + CHUNK_TOKENS] * taps[None, ..., tap]
    return jax.nn.silu(total).swapaxes(0, 1)


def _unit(x: Float[Array, "heads chunk width"]) -> Float[Array, "heads chunk width"]:
    return x * jax.lax.rsqrt(row_sums(jnp.square(x)) + _LENGTH_EPS)[..., None]


def _unit_lower_inverse(
    below: Float[Array, "heads chunk chunk"],
) -> Float[Array, "heads chunk chunk"]:
    """Return the inverse of a matrix of ones on the diagonal, `below` it, and zeros above.

    Inverses of blocks on the diagonal are joined to those of blocks twice as large: a row comes
    from the rows up to it, and all are done in ten products instead of one after another.
    """
    place = jnp.arange(CHUNK_TOKENS)
    inverse = jnp.broadcast_to(jnp.eye(CHUNK_TOKENS, dtype=jnp.float32)[None], below.shape)
    size = 1
    while size < CHUNK_TOKENS:
        block = place // size
        # Lower halves of the larger blocks, where their upper halves are the columns.
        joins = (block[:, None] % 2 == 1) & (block[None, :] == block[:, None] - 1)
        between = jnp.where(joins[None], below, 0.0)
        step = _product("hij,hjk->hik", inverse, between)
        # The compiler for TPU fails if it fuses the difference with the product.
        change = jax.lax.optimization_barrier(_product("hij,hjk->hik", step, inverse))
        inverse = inverse - change
        size *= 2
    return inverse
