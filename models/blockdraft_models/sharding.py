"""Placement of a decoder's weights on a device mesh by the logical names of their axes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from blockdraft_models.axes import EMBED, HEADS, KV_HEADS, MLP, VOCAB, Axes
from blockdraft_models.config import DecoderConfig

TENSOR_PARALLEL: Mapping[str, str | None] = MappingProxyType(
    {VOCAB: "model", HEADS: "model", KV_HEADS: "model", MLP: "model", EMBED: None}
)
"""Megatron-style rules: one all-reduce after attention and one after the MLP."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Decides where each weight lies.

    Attributes:
        mesh: The devices.
        rules: Logical axis -> mesh axis, or None to keep it whole on every device.
    """

    mesh: Mesh
    rules: Mapping[str, str | None] = field(default_factory=lambda: TENSOR_PARALLEL)

    def __post_init__(self) -> None:
        """Refuses rules that name no axis of the mesh."""
        for logical, physical in self.rules.items():
            if physical is not None and physical not in self.mesh.shape:
                raise ValueError(
                    f"{logical} is mapped to {physical!r}, but the mesh has the axes "
                    f"{tuple(self.mesh.shape)}"
                )

    def sharding(self, axes: Axes, config: DecoderConfig) -> NamedSharding:
        """Returns the sharding of a weight with these axes.

        An axis that does not divide evenly stays whole: heads are never cut in two, so with
        fewer key heads than devices every device holds all of them.
        """
        units = {
            VOCAB: config.vocab_size,
            HEADS: config.num_heads,
            KV_HEADS: config.num_kv_heads,
            MLP: config.intermediate_size,
            EMBED: config.hidden_size,
        }

        def physical(axis: str | None) -> str | None:
            name = None if axis is None else self.rules.get(axis)
            if axis is None or name is None or units[axis] % self.mesh.shape[name]:
                return None
            return name

        return NamedSharding(self.mesh, PartitionSpec(*(physical(axis) for axis in axes)))
