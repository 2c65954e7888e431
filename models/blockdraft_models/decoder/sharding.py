"""Logical names of weight axes, and the placement of weights on a device mesh by those names."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.config import DecoderConfig

VOCAB = "vocab"
EMBED = "embed"
HEADS = "heads"
KV_HEADS = "kv_heads"
GLOBAL_KV_HEADS = "global_kv_heads"  # of layers without a window, if they have others
MLP = "mlp"
LAYERS = "layers"
EXPERTS = "experts"
DELTA_HEADS = "delta_heads"  # of layers with a state; a key head and its value heads together

_LANES = 128  # of a TPU's vector

Axes = tuple[str | None, ...]
"""The logical name of each axis of a weight; None for one without."""

Place = Format | NamedSharding
"""Where a weight lies; a `Format` also says in which order of its axes."""

MODEL_AXIS = "model"
"""The axis of a mesh over which a model's heads, inner width and vocabulary are divided."""


def model_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """Return a row of devices, over which XLA divides the computation of a model."""
    return Mesh(np.asarray(devices), (MODEL_AXIS,), axis_types=(AxisType.Auto,))


class Division(NamedTuple):
    """The division of a weight among the devices of a mesh, which compute its products together."""

    mesh: Mesh
    axis: int | None  # divided axis of the weight; None if each device holds all of it

    def spec(self, leading: int = 0) -> PartitionSpec:
        """Return the partition of the weight, stacked along `leading` more axes."""
        if self.axis is None:
            return PartitionSpec()
        return PartitionSpec(*[None] * (leading + self.axis), MODEL_AXIS)


@dataclass(frozen=True, slots=True)
class Placement:
    """Decides where each weight lies on a mesh, which has the axis `MODEL_AXIS`."""

    mesh: Mesh

    def sharding(self, axes: Axes, config: DecoderConfig) -> NamedSharding:
        """Return the sharding of a weight with these axes.

        Megatron-style: one sum over the devices after attention and one after the MLP. An axis
        that does not divide evenly stays whole: heads are never cut in two, so with fewer key heads
        than devices every device holds all of them.
        """
        divided = {
            VOCAB: config.vocab_size,
            HEADS: config.num_heads,
            KV_HEADS: config.num_kv_heads,
            GLOBAL_KV_HEADS: config.global_kv_heads or config.num_kv_heads,
            MLP: config.intermediate_size,
            EXPERTS: config.num_experts,
            DELTA_HEADS: 1 if config.delta is None else config.delta.key_heads,
        }
        devices = self.mesh.shape[MODEL_AXIS]
        names = [
            MODEL_AXIS if axis in divided and divided[axis] % devices == 0 else None
            for axis in axes
        ]
        return NamedSharding(self.mesh, PartitionSpec(*names))

    def place(self, axes: Axes, shape: tuple[int, ...], config: DecoderConfig) -> Place:
        """Return where a weight of this shape lies."""
        return in_order(self.sharding(axes, config), shape)

    def division(self, axes: Axes, config: DecoderConfig) -> Division:
        """Return the division of a weight with these axes."""
        names = tuple(self.sharding(axes, config).spec)
        divided = MODEL_AXIS in names and self.mesh.size > 1
        return Division(self.mesh, names.index(MODEL_AXIS) if divided else None)


def in_order(sharding: NamedSharding, shape: tuple[int, ...]) -> Place:
    """Return the place of an array with its axes in their order, where XLA would choose another.

    On TPU it would keep an array whose last axis fills no whole lanes in another order, and copy
    all of it for a kernel at every step: embedding and head of gpt-oss, which is 2,880 wide.
    """
    on_tpu = sharding.mesh.devices.flat[0].platform == "tpu"
    if not on_tpu or len(shape) < 2 or sharding.shard_shape(shape)[-1] % _LANES == 0:
        return sharding
    return Format(Layout(tuple(range(len(shape)))), sharding)


def sum_over_devices(
    part: Float[Array, "rows width"], dtype: DTypeLike
) -> Float[Array, "rows width"]:
    """Add up the parts of the devices of `MODEL_AXIS` in their order; round once to `dtype`.

    An all-reduce adds in an order that depends on the size of the array and on the place in it.
    Here each device adds up some columns of all rows and gives the others its result, which sends
    as many elements as an all-reduce. To be called within `jax.shard_map`.
    """
    devices = jax.lax.axis_size(MODEL_AXIS)
    if divided := part.shape[1] % devices == 0:
        columns = part.reshape(len(part), devices, -1).swapaxes(0, 1)
        parts = jax.lax.all_to_all(columns, MODEL_AXIS, split_axis=0, concat_axis=0)
    else:
        parts = jax.lax.all_gather(part, MODEL_AXIS)
    total: Array = functools.reduce(operator.add, parts).astype(dtype)
    return jax.lax.all_gather(total, MODEL_AXIS, axis=1, tiled=True) if divided else total


def state_shapes(state: Any, config: DecoderConfig, placement: Placement | None) -> Any:
    """Return the shapes of a model's weights, placed by the axes that they name.

    `state` holds the weights, or the shapes that `nnx.eval_shape` returns.
    """

    def shape(variable: Any) -> Any:
        weight = variable.get_raw_value()
        place = None
        if placement is not None:
            axes = variable.get_metadata()["out_sharding"]
            place = placement.place(axes, weight.shape, config)
        return variable.replace(jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=place))

    return jax.tree.map(shape, state, is_leaf=lambda node: isinstance(node, nnx.Variable))


def placement_on_all_devices() -> Placement | None:
    """Return the placement of a model in a process that owns all its devices.

    None stands for a single device that is no TPU. A single TPU gets a mesh, so that its kernels
    are used.
    """
    if jax.default_backend() != "tpu" and jax.device_count() == 1:
        return None
    return Placement(model_mesh(jax.devices()))
