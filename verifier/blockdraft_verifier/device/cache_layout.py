"""How the K/V cache lies on the verifier's devices."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import MODEL_AXIS
from blockdraft_verifier.device.attention import kernel


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Shape and place of the cache.

    With as many key heads as devices, or a multiple, each device holds its share of them. With
    fewer, each holds the one that its query heads look at, the same on several devices. Heads
    that divide in neither way lie whole on every device, and so does attention to them.

    Attributes:
        num_layers: Of the target.
        num_pages: Pages of each layer.
        page_size: Tokens per page.
        kv_heads: Heads stored, those included that are repeated, or padding for the kernel.
        head_dim: Width of a stored head; the kernel's are padded.
        dtype: Element type.
        mesh: The devices; None for the default one.
        divided: Whether heads are divided over the devices.
        shared: Whether several devices hold the same key head.
        stacked: Whether one array holds all layers, as scanned layers need it.
        by_kernel: Whether attention is the TPU kernel's.
    """

    num_layers: int
    num_pages: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: DTypeLike
    mesh: Mesh | None = None
    divided: bool = False
    shared: bool = False
    stacked: bool = False
    by_kernel: bool = False

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        num_pages: int,
        page_size: int,
        dtype: DTypeLike,
        *,
        mesh: Mesh | None = None,
        stacked: bool = False,
    ) -> "CacheLayout":
        """Return the layout for a target.

        Args:
            config: The target.
            num_pages: Pages of each layer.
            page_size: Tokens per page.
            dtype: Element type.
            mesh: The devices; None for the default one.
            stacked: Whether the target's layers are scanned.
        """
        devices = 1 if mesh is None else mesh.shape[MODEL_AXIS]
        heads, kv_heads = config.num_heads, config.num_kv_heads
        divided = heads % devices == 0 and (kv_heads % devices == 0 or devices % kv_heads == 0)
        shared = divided and devices > kv_heads
        if shared:
            kv_heads = devices
        share = devices if divided else 1
        on_tpu = mesh is not None and mesh.devices.flat[0].platform == "tpu"
        width = config.head_dim
        if on_tpu:
            width = kernel.padded(width)
            kv_heads = share * kernel.stored_heads(kv_heads // share, dtype)
        return cls(
            config.num_layers,
            num_pages,
            page_size,
            kv_heads,
            width,
            dtype,
            mesh,
            divided,
            shared,
            stacked,
            on_tpu,
        )

    @property
    def heads_spec(self) -> PartitionSpec:
        """The partition of [tokens, heads, head_dim]."""
        return PartitionSpec(None, MODEL_AXIS) if self.divided else PartitionSpec()

    @property
    def cache_spec(self) -> PartitionSpec:
        """The partition of [pages, page_size, kv_slots, head_dim]."""
        return PartitionSpec(None, None, MODEL_AXIS) if self.divided else PartitionSpec()

    @property
    def array_count(self) -> int:
        """How many arrays the cache is.

        One per layer, not one for all, unless layers are scanned: each can be donated to a step
        and updated in place.
        """
        return 1 if self.stacked else self.num_layers

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of each array: keys in even and values in odd head slots."""
        pages = self.num_pages * (self.num_layers if self.stacked else 1)
        return pages, self.page_size, 2 * self.kv_heads, self.head_dim

    @property
    def sharding(self) -> NamedSharding | None:
        """Where each array lies; None for the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, self.cache_spec)

    @property
    def replicated(self) -> NamedSharding | None:
        """Where what every device needs lies; None for the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, on one device."""
        devices = 1 if self.mesh is None or not self.divided else self.mesh.shape[MODEL_AXIS]
        elements = self.page_size * 2 * (self.kv_heads // devices) * self.head_dim
        return self.num_layers * elements * jnp.dtype(self.dtype).itemsize
