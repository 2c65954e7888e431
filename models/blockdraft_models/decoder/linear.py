"""Weights, and linear maps and embeddings of them.

Every weight is a separate `nnx.Param` that names its axes in its `out_sharding` metadata. Placing
it on a mesh is explicit (`sharding.py`), hence `eager_sharding=False`: modules can be built where
no mesh is set. `rngs=None` gives zeros, for modules about to be filled from a checkpoint: tracing
200 random draws takes seconds.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from blockdraft_models.decoder.products import Matrix, project
from blockdraft_models.decoder.sharding import EMBED, VOCAB, Axes, Division
from blockdraft_models.decoder.stored import (
    Format,
    LayerMatrix,
    ScaledMatrix,
    StoredMatrix,
    row_bytes,
)


def parameter(value: Array, axes: Axes) -> nnx.Param[Array]:
    """Wrap a weight together with the logical names of its axes."""
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


def random_weights(
    rngs: nnx.Rngs | None, shape: tuple[int, ...], stddev: float, dtype: DTypeLike
) -> Float[Array, "..."]:
    """Draw normal weights, in float32 first so that every dtype gets the same ones."""
    if rngs is None:
        return jnp.zeros(shape, dtype)
    return (jax.random.normal(rngs.params(), shape, jnp.float32) * stddev).astype(dtype)


def int8_zeros(weight: nnx.Param[Array], inputs: int) -> tuple[nnx.Param[Array], nnx.Param[Array]]:
    """Return zeros for an int8 weight and for its scales, which lack the axis of inputs."""
    shape, axes = weight.shape, weight.get_metadata()["out_sharding"]
    scale = jnp.zeros((*shape[:inputs], *shape[inputs + 1 :]), jnp.float32)
    of_scale = (*axes[:inputs], *axes[inputs + 1 :])
    return parameter(jnp.zeros(shape, jnp.int8), axes), parameter(scale, of_scale)


class Linear(nnx.Module):
    """`x @ weight.T * scale + bias`, and what an adapter of the row adds.

    Attributes:
        weight: [out in], or [layers out in] if there is a layer; int8 if there is a scale; bytes of
            blocks if there is a format.
        layer: Index in the stack, or None.
        format: GGUF format of the weight, or None.
        scale: Float32 [out], or None for weights in the compute dtype.
        bias: [out] or None.
        adapters: Those of this map, or None.
        division: Division of the weight among devices; None for a single device.
    """

    division: Division | None = None
    layer: Int[Array, ""] | None = None
    format: Format | None = None
    adapters: "LowRank | None" = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axes: Axes,
        *,
        bias: bool,
        dtype: DTypeLike,
        rngs: nnx.Rngs | None,
    ) -> None:
        """Initialize to unit-variance outputs for unit-variance inputs, and a bias of zero.

        `axes` are the logical names of the output and the input axis, as the weight is stored.
        """
        weight = random_weights(rngs, (out_features, in_features), in_features**-0.5, dtype)
        self.weight = parameter(weight, axes)
        self.scale: nnx.Param[Array] | None = None
        self.bias = parameter(jnp.zeros(out_features, dtype), axes[:1]) if bias else None

    @property
    def matrix(self) -> Matrix | ScaledMatrix:
        """The weight as an operand of `project`."""
        weight: Matrix = self.weight[...]
        if self.layer is not None:
            weight = LayerMatrix(weight, self.layer)
        if self.scale is not None:
            return ScaledMatrix(weight, self.scale[...])
        return weight if self.format is None else StoredMatrix(weight, self.format)

    def hold_stored(self, format: Format) -> None:
        """Replace the weight by zeros in a GGUF format."""
        self.weight, self.format = _stored_parameter(self.weight, format), format

    def hold_int8(self) -> None:
        """Replace the weight by int8 zeros with scales, for `quantization.py` to fill."""
        self.weight, scale = int8_zeros(self.weight, inputs=1)
        self.scale = nnx.data(scale)

    def __call__(self, x: Float[Array, "rows in"]) -> Float[Array, "rows out"]:
        """Apply the map to each row."""
        y = project(x, self.matrix, division=self.division)
        if self.bias is not None:
            y = y + self.bias[...][None, :]
        return y if self.adapters is None else self.adapters(x, y)


class LowRank(nnx.Module):
    """Adapters of a linear map: `up(down(x))`, of each row by the adapter that it names.

    The adapters lie side by side, the outputs of `down` and the inputs of `up` one after another,
    so that two products serve any mixture of rows, and no row affects another. A scale is part of
    `up`. Source: LoRA (arXiv 2106.09685, equation 3).

    Attributes:
        columns: Bool [rows ranks], whether a column is of the row's adapter; set for each step.
    """

    columns: Bool[Array, "rows ranks"] | None = None

    def __init__(
        self, in_features: int, out_features: int, ranks: int, axes: Axes, dtype: DTypeLike
    ) -> None:
        """Begin with zeros; `axes` are those of the map's weight, `ranks` the sum over adapters."""
        outputs, inputs = axes
        self.down = Linear(in_features, ranks, (None, inputs), bias=False, dtype=dtype, rngs=None)
        self.up = Linear(ranks, out_features, (outputs, None), bias=False, dtype=dtype, rngs=None)

    def __call__(
        self, x: Float[Array, "rows in"], y: Float[Array, "rows out"]
    ) -> Float[Array, "rows out"]:
        """Return `y`, the map's output, as the adapters of the rows change it.

        A step without adapters computes none of them. Rows without one keep their very bits, so
        that it does not matter beside which rows they are: adding a zero may change a sign.
        """
        columns = self.columns
        if columns is None:
            raise ValueError("the rows' adapters are not set")

        def adapted() -> Float[Array, "rows out"]:
            low = self.down(x)
            added = self.up(jnp.where(columns, low, jnp.zeros_like(low)))
            return jnp.where(columns.any(axis=1, keepdims=True), y + added, y)

        result: Array = jax.lax.cond(columns.any(), adapted, lambda: y)
        return result


class Embedding(nnx.Module):
    """Token embedding, also usable as a tied head.

    `format` is the table's GGUF format, or None; `division` is that of the table among devices.
    """

    division: Division | None = None
    format: Format | None = None

    def __init__(self, vocab: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> None:
        """Initialize so that a tied head gives logits of about unit variance."""
        table = random_weights(rngs, (vocab, hidden), hidden**-0.5, dtype)
        self.table = parameter(table, (VOCAB, EMBED))
        self.dtype = jnp.dtype(dtype)

    @property
    def matrix(self) -> Array | StoredMatrix:
        """The table as an operand of `project`, [vocab hidden]."""
        return (
            self.table[...] if self.format is None else StoredMatrix(self.table[...], self.format)
        )

    def hold_stored(self, format: Format) -> None:
        """Replace the table by zeros in a GGUF format."""
        self.table, self.format = _stored_parameter(self.table, format), format

    def __call__(self, token_ids: Int[Array, " tokens"]) -> Float[Array, "tokens hidden"]:
        """Look up one row per token."""
        rows = self.matrix[token_ids]
        return rows.dequantized().astype(self.dtype) if isinstance(rows, StoredMatrix) else rows


def _stored_parameter(weight: nnx.Param[Array], format: Format) -> nnx.Param[Array]:
    rows, columns = weight.shape
    zeros = jnp.zeros((rows, row_bytes(format, columns)), jnp.uint8)
    return parameter(zeros, weight.get_metadata()["out_sharding"])
