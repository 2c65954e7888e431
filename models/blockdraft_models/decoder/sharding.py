"""Logical names of weight axes, and the placement of weights on a device mesh by those names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from blockdraft_models.decoder.config import DecoderConfig

VOCAB = "vocab"
EMBED = "embed"
HEADS = "heads"
KV_HEADS = "kv_heads"
MLP = "mlp"
LAYERS = "layers"

Axes = tuple[str | None, ...]
"""The logical name of each axis of a weight; None for one that is never divided."""

MODEL_AXIS = "model"
"""The axis of a mesh over which a model's heads, inner width and vocabulary are divided."""

TENSOR_PARALLEL: Mapping[str, str | None] = MappingProxyType(
    {
        VOCAB: MODEL_AXIS,
        HEADS: MODEL_AXIS,
        KV_HEADS: MODEL_AXIS,
        MLP: MODEL_AXIS,
        EMBED: None,
        LAYERS: None,
    }
)
"""Megatron-style rules: one all-reduce after attention and one after the MLP."""


def model_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """Return devices in a row, over which XLA divides what a model computes."""
    return Mesh(np.asarray(devices), (MODEL_AXIS,), axis_types=(AxisType.Auto,))


@dataclass(frozen=True, slots=True)
class Placement:
    """Decides where each weight lies.

    Attributes:
        mesh: The devices.
        rules: Logical axis -> mesh axis, or None to keep it whole on every device.
    """

    mesh: Mesh
    # Left out of the hash: a mapping has none.
    rules: Mapping[str, str | None] = field(default_factory=lambda: TENSOR_PARALLEL, hash=False)

    def __post_init__(self) -> None:
        """Refuse rules that name no axis of the mesh."""
        for logical, physical in self.rules.items():
            if physical is not None and physical not in self.mesh.shape:
                raise ValueError(
                    f"{logical} is mapped to {physical!r}, but the mesh has the axes "
                    f"{tuple(self.mesh.shape)}"
                )

    def sharding(self, axes: Axes, config: DecoderConfig) -> NamedSharding:
        """Return the sharding of a weight with these axes.

        An axis that does not divide evenly stays whole: heads are never cut in two, so with
        fewer key heads than devices every device holds all of them.
        """
        units = {
            VOCAB: config.vocab_size,
            HEADS: config.num_heads,
            KV_HEADS: config.num_kv_heads,
            MLP: config.intermediate_size,
            EMBED: config.hidden_size,
            LAYERS: config.num_layers,
        }

        def physical(axis: str | None) -> str | None:
            name = None if axis is None else self.rules.get(axis)
            if axis is None or name is None or units[axis] % self.mesh.shape[name]:
                return None
            return name

        return NamedSharding(self.mesh, PartitionSpec(*(physical(axis) for axis in axes)))


def state_shapes(state: Any, config: DecoderConfig, placement: Placement | None) -> Any:
    """Return the shapes of a model's weights, placed by the axes that they name.

    Args:
        state: The weights, or what `nnx.eval_shape` makes of them.
        config: The model's.
        placement: On a mesh; None for the default device.
    """

    def shape(variable: Any) -> Any:
        weight = variable.get_raw_value()
        where = None
        if placement is not None:
            where = placement.sharding(variable.get_metadata()["out_sharding"], config)
        return variable.replace(jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=where))

    return jax.tree.map(shape, state, is_leaf=lambda node: isinstance(node, nnx.Variable))


def placement_on_all_devices() -> Placement | None:
    """Return where a process that owns all its devices puts a model.

    None stands for a single device, unless that is a TPU: there a mesh of one also says that its
    kernels are to be used.
    """
    if jax.default_backend() != "tpu" and jax.device_count() == 1:
        return None
    return Placement(model_mesh(jax.devices()))
