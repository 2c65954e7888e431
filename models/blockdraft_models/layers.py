"""Linear maps, RMS normalization, embedding: the parts a decoder layer is made of.

Every weight is a separate `nnx.Param` that names its axes (`axes.py`) in its `out_sharding`
metadata. Placing it on a mesh is explicit (`sharding.py`), hence `eager_sharding=False`: modules
can be built where no mesh is set.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_models.axes import EMBED, VOCAB, Axes


def parameter(value: Array, axes: Axes) -> nnx.Param[Array]:
    """Wraps a weight together with the logical names of its axes."""
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


def random_weights(
    rngs: nnx.Rngs | None, shape: tuple[int, int], stddev: float, dtype: DTypeLike
) -> Float[Array, "rows columns"]:
    """Draws normal weights, in float32 first so that every dtype gets the same ones.

    Args:
        rngs: Source of randomness, stream `params`; None gives zeros, for modules about to be
            filled from a checkpoint (tracing 200 random draws takes seconds).
        shape: Of the matrix.
        stddev: Standard deviation.
        dtype: Of the result.

    Returns:
        The matrix.
    """
    if rngs is None:
        return jnp.zeros(shape, dtype)
    return (jax.random.normal(rngs.params(), shape, jnp.float32) * stddev).astype(dtype)


class Linear(nnx.Module):
    """`x @ kernel + bias` with the kernel stored [in, out].

    Attributes:
        kernel: [in out].
        bias: [out] or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axes: tuple[str, str],
        *,
        bias: bool,
        dtype: DTypeLike,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Initializes to unit-variance outputs for unit-variance inputs.

        Args:
            in_features: Width of the input.
            out_features: Width of the output.
            axes: Logical names of the input and output axis.
            bias: Whether to add one (initially zero).
            dtype: Of the weights.
            rngs: Source of randomness; None gives zeros.
        """
        kernel = random_weights(rngs, (in_features, out_features), in_features**-0.5, dtype)
        self.kernel = parameter(kernel, axes)
        self.bias = parameter(jnp.zeros(out_features, dtype), axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "rows in"]) -> Float[Array, "rows out"]:
        """Applies the map to each row."""
        y = jnp.dot(x, self.kernel[...])
        return y if self.bias is None else y + self.bias[...][None, :]


class RMSNorm(nnx.Module):
    """Root-mean-square normalization over the last axis, computed in float32.

    Attributes:
        scale: [width].
        eps: Added to the mean square.
    """

    def __init__(
        self, width: int, eps: float, *, axis: str | None = EMBED, dtype: DTypeLike
    ) -> None:
        """Starts with unit scale; `axis` names the normalized axis."""
        self.scale = parameter(jnp.ones(width, dtype), (axis,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        """Normalizes each row and scales it; the result has the dtype of `x`."""
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        scale = self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))
        # Rounded before scaling, as the published models were trained.
        return (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype) * scale


class Embedding(nnx.Module):
    """Token embedding, also usable as a tied head.

    Attributes:
        table: [vocab hidden].
    """

    def __init__(self, vocab: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initializes so that a tied head gives logits of about unit variance."""
        table = random_weights(rngs, (vocab, hidden), hidden**-0.5, dtype)
        self.table = parameter(table, (VOCAB, EMBED))

    def __call__(self, token_ids: Int[Array, " tokens"]) -> Float[Array, "tokens hidden"]:
        """Looks up one row per token."""
        return self.table[...][token_ids]


def head_logits(
    hidden: Float[Array, "rows hidden"],
    embedding: Float[Array, "vocab hidden"],
    head: Float[Array, "hidden vocab"] | None,
) -> Float[Array, "rows vocab"]:
    """Scores every token.

    Args:
        hidden: Final, normalized hidden states.
        embedding: The embedding table, used when the head is tied.
        head: The kernel of an untied head, or None.

    Returns:
        Logits in float32, whatever the dtype of the weights.
    """
    # A tied head contracts with the table as stored: transposing it first would copy it.
    weights, axis = (embedding, 1) if head is None else (head, 0)
    return jax.lax.dot_general(
        hidden, weights, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32
    )
