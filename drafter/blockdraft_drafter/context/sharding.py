"""How the heads of the draft layers are divided among the devices of a mesh."""

from dataclasses import dataclass

from jax.sharding import Mesh, PartitionSpec

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import HEADS, KV_HEADS, Placement


@dataclass(frozen=True, slots=True)
class HeadSharding:
    """Which mesh axes divide query heads and KV heads; neither is ever cut in two.

    Attributes:
        mesh: The devices.
        query_axis: Divides the query heads; None when every device attends with all of them.
        kv_axis: Divides the KV heads; None when every device holds all of them.
    """

    mesh: Mesh
    query_axis: str | None
    kv_axis: str | None

    @classmethod
    def of(cls, config: DecoderConfig, placement: Placement) -> "HeadSharding":
        """Return the division that follows from where the projections lie.

        With fewer KV heads than devices, a device keeps to its own query heads as long as one KV
        head serves them all.
        """
        query_axis = _axis(HEADS, config, placement)
        kv_axis = _axis(KV_HEADS, config, placement)
        if query_axis is not None and kv_axis is None:
            local_heads = config.num_heads // placement.mesh.shape[query_axis]
            if config.num_heads // config.num_kv_heads % local_heads:
                query_axis = None
        return cls(placement.mesh, query_axis, kv_axis)

    @property
    def on_tpu(self) -> bool:
        """Whether the devices are TPU chips, present or only compiled for."""
        return bool(self.mesh.devices.flat[0].platform == "tpu")

    @property
    def queries(self) -> PartitionSpec:
        """Of [blocks, queries, heads, head_dim]."""
        return PartitionSpec(None, None, self.query_axis, None)

    @property
    def own(self) -> PartitionSpec:
        """Of a block's own keys and values, [blocks, keys, kv_heads, head_dim]."""
        return PartitionSpec(None, None, self.kv_axis, None)

    @property
    def context(self) -> PartitionSpec:
        """Of keys and values in the context buffer, [slots, kv_heads, capacity, head_dim]."""
        return PartitionSpec(None, self.kv_axis, None, None)


def _axis(heads: str, config: DecoderConfig, placement: Placement) -> str | None:
    axis: str | None = placement.sharding((heads,), config).spec[0]
    return axis
