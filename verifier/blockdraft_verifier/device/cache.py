"""The paged cache: keys and values on the devices, features on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import MODEL_AXIS
from blockdraft_verifier.device import kernel_attention, tile_kernel
from blockdraft_verifier.device.states import DeltaCache, StateLayout

FEATURE_DTYPE: np.dtype = np.dtype(ml_dtypes.bfloat16)
"""Element type of features, wherever they are."""
Attention = Literal["portable", "library", "tiles"]
"""The module that computes attention: `portable_attention`, or on TPU `kernel_attention`, or
`tile_kernel` for what the former cannot compute."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Shape and place of the cache.

    With as many key heads as devices, or a multiple, each device holds its share of them. With
    fewer, each holds the one that its query heads look at, the same on several devices. Heads
    that divide in neither way lie whole on every device, and so does attention to them.
    """

    num_layers: int  # layers of this layout that have keys and values
    num_pages: int  # of each layer
    page_size: int
    kv_heads: int  # heads stored, those included that are repeated, or padding for a kernel
    head_dim: int  # width of a stored head; those of kernels are padded
    dtype: DTypeLike
    mesh: Mesh | None = None  # the devices; None for the default one
    divided: bool = False  # whether heads are divided over the devices
    shared: bool = False  # whether several devices hold the same key head
    stacked: bool = False  # whether one array holds all layers, as scanned layers need it
    attention: Attention = "portable"
    fp8: bool = False  # whether keys and values are rounded to FP8, whatever `dtype` is
    latent: bool = False  # whether the values of a head are its keys, and stored once
    # The layout of layers without a window, if theirs is another, and whether each of all layers
    # has one.
    of_global: "CacheLayout | None" = None
    windowed: tuple[bool, ...] = ()
    states: StateLayout | None = None  # of layers that have a state instead of keys and values
    # The signals of canvases, [slots canvas hidden], if they begin as noise.
    signals: jax.ShapeDtypeStruct | None = None

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
        fp8: bool = False,
        states: StateLayout | None = None,
    ) -> "CacheLayout":
        """Return the layout for a target."""
        if config.global_head_dim is not None:
            local, of_global = (
                cls.of(kind, num_pages, page_size, dtype, mesh=mesh, stacked=stacked, fp8=fp8)
                for kind in (config.of_kind(is_global=False), config.of_kind(is_global=True))
            )
            windowed = tuple(config.window(layer) > 0 for layer in range(config.kv_layers))
            of_global = replace(of_global, num_layers=windowed.count(False))
            count = windowed.count(True)
            return replace(local, num_layers=count, of_global=of_global, windowed=windowed)
        devices = 1 if mesh is None else mesh.shape[MODEL_AXIS]
        heads, kv_heads = config.num_heads, config.num_kv_heads
        divided = heads % devices == 0 and (kv_heads % devices == 0 or devices % kv_heads == 0)
        shared = divided and devices > kv_heads
        if shared:
            kv_heads = devices
        share, latent = devices if divided else 1, config.latent is not None
        on_tpu = mesh is not None and mesh.devices.flat[0].platform == "tpu"
        attention: Attention = "portable"
        width = config.head_dim
        if on_tpu and kernel_attention.takes(config):
            attention, width = "library", kernel_attention.padded(width)
            kv_heads = share * kernel_attention.stored_heads(kv_heads // share, dtype)
        elif on_tpu:
            attention, width = "tiles", tile_kernel.padded(width, latent=latent)
        layers = config.kv_layers - sum(config.recurrent)
        sizes = layers, num_pages, page_size, kv_heads, width
        form = divided, shared, stacked, attention, fp8
        return cls(*sizes, dtype, mesh, *form, latent=latent, states=states)

    @property
    def heads_spec(self) -> PartitionSpec:
        """The partition of [tokens, heads, head_dim]."""
        return PartitionSpec(None, MODEL_AXIS) if self.divided else PartitionSpec()

    @property
    def cache_spec(self) -> PartitionSpec:
        """The partition of an array of `shape`."""
        return PartitionSpec(None, None, MODEL_AXIS) if self.divided else PartitionSpec()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each array: keys in even and values in odd head slots, if values are others.

        With attention by tiles, all slots of a position are one row.
        """
        pages = self.num_pages * (self.num_layers if self.stacked else 1)
        slots = self.kv_heads * self.head_slots
        if self.attention == "tiles":
            return pages, self.page_size, slots * self.head_dim
        return pages, self.page_size, slots, self.head_dim

    @property
    def sharding(self) -> NamedSharding | None:
        """Placement of each array; None for the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, self.cache_spec)

    @property
    def replicated(self) -> NamedSharding | None:
        """Placement of arrays that are whole on every device; None for the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @property
    def device_kv_heads(self) -> int:
        """Number of key heads stored on one device."""
        devices = 1 if self.mesh is None or not self.divided else self.mesh.shape[MODEL_AXIS]
        return self.kv_heads // devices

    @property
    def head_slots(self) -> int:
        """Number of vectors stored of each head."""
        return 1 if self.latent else 2

    @property
    def of_layers(self) -> "list[CacheLayout]":
        """The layout of each layer."""
        if self.of_global is None:
            return [self] * self.num_layers
        return [self if windowed else self.of_global for windowed in self.windowed]

    @property
    def stacks(self) -> "list[CacheLayout]":
        """The layout of each array: of all layers alike, if they are stacked, or of one."""
        if not self.stacked:
            return self.of_layers
        return [self] if self.of_global is None else [self, self.of_global]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, on one device."""
        return sum(layer.layer_bytes for layer in self.of_layers)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one page of one layer of this layout, on one device."""
        elements = self.head_slots * self.page_size * self.device_kv_heads * self.head_dim
        return elements * jnp.dtype(self.dtype).itemsize


class LayeredCache(NamedTuple):
    """The cache of layers alike, and the one whose turn it is; scanned layers hand it on."""

    pages: Array  # of `CacheLayout.shape`
    layer: Array  # Int[Array, ""], the layer that comes next


LayerCaches = list[Array] | list[LayeredCache]
"""One array per layer, or one of all layers alike."""


class PagedCache(NamedTuple):
    """Keys, values and token of each position, and states of sequences, on the devices."""

    layers: LayerCaches  # keys and values
    tokens: Array  # Int[Array, "pages page_size"], for penalties
    states: list[DeltaCache]  # of sequences, in layers that recur
    # Float[Array, "slots canvas hidden"], of the last step of each canvas; see `CanvasInputs`.
    signals: Array | None = None


def allocate_cache(layout: CacheLayout) -> PagedCache:
    """Return the zeroed cache."""
    tokens = jnp.zeros((layout.num_pages, layout.page_size), jnp.int32, device=layout.replicated)
    states = [] if layout.states is None else layout.states.allocate()
    signals = None
    if layout.signals is not None:
        shape, dtype = layout.signals.shape, layout.signals.dtype
        signals = jnp.zeros(shape, dtype, device=layout.replicated)
    return PagedCache(allocate_kv(layout), tokens, states, signals)


def cache_places(layout: CacheLayout) -> Any:
    """Return the placement of each array of the cache, in the form of the cache."""
    layers: Any = [stack.sharding for stack in layout.stacks]
    whole: Any = layout.replicated
    if layout.stacked:
        layers = [LayeredCache(stack, whole) for stack in layers]
    states: Any = [] if layout.states is None else layout.states.places()
    return PagedCache(layers, whole, states, None if layout.signals is None else whole)


def allocate_kv(layout: CacheLayout) -> LayerCaches:
    """Return zeroed keys and values, keys in even and values in odd head slots."""

    def first() -> Array:
        return jnp.zeros((), jnp.int32, device=layout.replicated)

    # Without a stack an array per layer, since each can be updated in place.
    zeros = [jnp.zeros(stack.shape, stack.dtype, device=stack.sharding) for stack in layout.stacks]
    return [LayeredCache(pages, first()) for pages in zeros] if layout.stacked else zeros


class Positions(NamedTuple):
    """Positions `start` to `stop` of the sequence that owns `pages`."""

    pages: Sequence[int]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of positions."""
        return self.stop - self.start


class FeatureStore:
    """Features of every committed position, addressed by the same pages as the K/V.

    Features leave the device anyway, on their way to the drafter. Kept here they let a drafter's
    context be built again after a restart, and a sequence that takes over cached pages be drafted
    for, without computing anything twice. Host memory, 1/8 of the K/V for the default target.
    """

    def __init__(self, num_pages: int, page_size: int, width: int) -> None:
        """Hold `width` elements for each of `num_pages * page_size` positions."""
        self.width = width
        self._page_size = page_size
        self._rows = np.zeros((num_pages * page_size, width), FEATURE_DTYPE)

    def write(self, pages: Sequence[int], start: int, features: np.ndarray) -> None:
        """Keep features of the positions from `start` on of the sequence that owns `pages`."""
        offset = 0
        for run in self._runs(pages, start, start + len(features)):
            count = run.stop - run.start
            self._rows[run] = features[offset : offset + count]
            offset += count

    def read(self, positions: Sequence[Positions], out: np.ndarray | None = None) -> np.ndarray:
        """Return the features of some positions as `[positions, width]`, in `out` if given."""
        rows = sum(place.rows for place in positions)
        out = np.empty((rows, self.width), FEATURE_DTYPE) if out is None else out
        offset = 0
        for place in positions:
            for run in self._runs(*place):
                count = run.stop - run.start
                out[offset : offset + count] = self._rows[run]
                offset += count
        return out

    def _runs(self, pages: Sequence[int], start: int, stop: int) -> Iterator[slice]:
        """Yield the rows of positions `start` to `stop`, page by page."""
        size = self._page_size
        while start < stop:
            page, offset = divmod(start, size)
            count = min(size - offset, stop - start)
            first = pages[page] * size + offset
            yield slice(first, first + count)
            start += count
