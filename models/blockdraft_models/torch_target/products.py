"""PyTorch's products and sums of rows on JAX, computed by `decoder.products`.

torchax has its own, whose rounding of a row depends on the number of rows on CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torchax
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.products import project, row_sums
from blockdraft_models.platform import by_platform


def _linear(
    x: Float[Array, "*rows in"], weight: Float[Array, "out in"], bias: Array | None = None
) -> Float[Array, "*rows out"]:
    rows = project(x.reshape(-1, x.shape[-1]), weight)
    y = rows.reshape(*x.shape[:-1], -1)
    return y if bias is None else y + bias


def _mean(
    x: Array, dim: Sequence[int] | int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    if dim not in (-1, [-1], (-1,)) or dtype is not None or x.dtype != jnp.float32:
        return jnp.mean(x, axis=dim, keepdims=keepdim, dtype=dtype)
    mean = row_sums(x) / x.shape[-1]
    return mean[..., None] if keepdim else mean


def _layer_norm(
    x: Float[Array, "*rows width"],
    shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, Array, Array]:
    if len(shape) != 1:
        raise ValueError("a norm over several axes is not supported")
    wide = x.astype(jnp.float32)
    mean = row_sums(wide)[..., None] / x.shape[-1]
    scale = jax.lax.rsqrt(row_sums(jnp.square(wide - mean))[..., None] / x.shape[-1] + eps)
    y = (wide - mean) * scale
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(x.dtype), mean, scale


def _softmax(x: Float[Array, "*rows width"], dim: int, to_float: bool = False) -> Array:
    if dim not in (-1, x.ndim - 1):
        raise ValueError("a softmax over another axis than the last is not supported")
    wide = x.astype(jnp.float32)
    weights = jnp.exp(wide - wide.max(axis=-1, keepdims=True))
    return (weights / row_sums(weights)[..., None]).astype(wide.dtype if to_float else x.dtype)


def _grouped_mm(
    rows: Float[Array, "rows inputs"],
    weight: Float[Array, "experts inputs outputs"],
    ends: Int[Array, " experts"],
    *_: Any,
) -> Float[Array, "rows outputs"]:
    """Multiply rows, which are sorted by expert, each with its expert's weight."""
    product: Array = by_platform(rows, weight, ends, cpu=_one_by_one, default=_group_by_group)
    return product


def _one_by_one(rows: Array, weight: Array, ends: Array) -> Array:
    """Multiply all rows with the weight of each expert that any row chose, as `Experts` does."""
    expert = jnp.searchsorted(ends, jnp.arange(len(rows), dtype=ends.dtype), side="right")

    def add(y: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        mine = (expert == pair[0])[:, None]

        def added() -> Array:
            return jnp.where(mine, project(rows, pair[1].T), y)

        return jax.lax.cond(mine.any(), added, lambda: y), None

    numbers = jnp.arange(len(weight), dtype=expert.dtype)
    y, _ = jax.lax.scan(add, jnp.zeros((len(rows), weight.shape[2]), rows.dtype), (numbers, weight))
    return y


def _group_by_group(rows: Array, weight: Array, ends: Array) -> Array:
    sizes = jnp.diff(ends, prepend=0).astype(jnp.int32)
    product: Array = jax.lax.ragged_dot(rows, weight, sizes)
    return product


_OURS: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.linear: _linear,
    torch.ops.aten.mean: _mean,
    torch.ops.aten.native_layer_norm: _layer_norm,
    torch.ops.aten._softmax: _softmax,
    torch.ops.aten._grouped_mm: _grouped_mm,
}


def use_our_products() -> None:
    """Have torchax compute products, sums and norms as our own decoder does."""
    env = torchax.default_env()
    for operator, ours in _OURS.items():

        def run(*args: Any, ours: Callable[..., Any] = ours, **kwargs: Any) -> Any:
            args, kwargs = env.t2j_iso((args, kwargs))
            return env.j2t_iso(ours(*args, **kwargs))

        env.override_op_definition(operator, run)
