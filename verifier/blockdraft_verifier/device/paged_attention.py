"""One step's attention as the decoder calls it, layer after layer, on one device or a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.attention import EVERYTHING, Reach
from blockdraft_models.decoder.delta_rule import DeltaInputs, DeltaWeights
from blockdraft_models.decoder.sharding import MODEL_AXIS
from blockdraft_models.precision import rounded_to_fp8
from blockdraft_verifier.device import kernel_attention as kernel
from blockdraft_verifier.device import portable_attention as portable
from blockdraft_verifier.device import tile_kernel
from blockdraft_verifier.device.cache import CacheLayout, LayeredCache
from blockdraft_verifier.device.portable_attention import RaggedBatch
from blockdraft_verifier.device.recurrence import recur
from blockdraft_verifier.device.states import DeltaCache


class PagedAttend:
    """An `Attend` of `blockdraft_models`: writes keys and values, then attends.

    On a mesh every device does so for its own heads, without talking to the others. Of layers that
    recur, each row's state is in its slot.
    """

    def __init__(
        self, batch: RaggedBatch, layout: CacheLayout, slots: Int[Array, " rows"] | None = None
    ) -> None:
        """Attend in this batch, with a cache of this layout."""
        self._batch, self._layout, self._slots = batch, layout, slots

    def __call__(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: Float[Array, "pages page_size *position"] | LayeredCache,
        reach: Reach = EVERYTHING,
    ) -> tuple[
        Float[Array, "tokens heads head_dim"],
        Float[Array, "pages page_size *position"] | LayeredCache,
    ]:
        """Return the attention output and the updated cache."""
        of_global = self._layout.of_global
        if of_global is not None and not reach.window:
            return PagedAttend(self._batch, of_global)(q, k, v, cache, reach)
        if not isinstance(cache, LayeredCache):
            return self._on_devices(q, k, v, cache, self._batch, reach)
        layout, layer = self._layout, cache.layer
        if reach.stored:
            layer = (layer - 1) % layout.num_layers
        batch = self._batch.moved(layer * layout.num_pages, layout.page_size, cache.pages.shape[0])
        out, pages = self._on_devices(q, k, v, cache.pages, batch, reach)
        # After the last layer comes the first one of the next step.
        return out, LayeredCache(pages, (layer + 1) % layout.num_layers)

    def recur(
        self, weights: DeltaWeights, inputs: DeltaInputs, cache: DeltaCache
    ) -> tuple[Float[Array, "tokens value_heads value_dim"], DeltaCache]:
        """Return the outputs of a layer that recurs, and its updated cache."""
        assert self._layout.states is not None
        assert self._slots is not None
        return recur(self._layout.states, weights, inputs, cache, self._batch, self._slots)

    def _on_devices(
        self, q: Array, k: Array, v: Array, cache: Array, batch: RaggedBatch, reach: Reach
    ) -> tuple[Array, Array]:
        layout = self._layout
        # Compiled for, not an operand.
        attend = partial(
            self._attend, window=reach.window, stored=reach.stored, canvas=reach.canvas
        )
        operands = q, k, v, cache, batch, reach.applies, reach.sinks
        if layout.mesh is None:
            return attend(*operands)
        heads, whole = layout.heads_spec, PartitionSpec()
        # A head that several devices share is whole on all of them.
        kv = whole if layout.shared else heads
        sinks = PartitionSpec(MODEL_AXIS) if layout.divided else whole
        divided = jax.shard_map(
            attend,
            mesh=layout.mesh,
            in_specs=(heads, kv, kv, layout.cache_spec, whole, whole, sinks),
            out_specs=(heads, layout.cache_spec),
            check_vma=False,  # the kernel does not say over which axes its results vary
        )
        out, cache = divided(*operands)
        return out, cache

    def _attend(
        self,
        q: Float[Array, "tokens heads head_dim"],
        k: Float[Array, "tokens kv_heads head_dim"],
        v: Float[Array, "tokens kv_heads head_dim"],
        cache: Float[Array, "pages page_size *position"],
        batch: RaggedBatch,
        applies: Bool[Array, ""] | None,
        sinks: Float[Array, " heads"] | None,
        *,
        window: int,
        stored: bool,
        canvas: int,
    ) -> tuple[
        Float[Array, "tokens heads head_dim"],
        Float[Array, "pages page_size *position"],
    ]:
        """Attend with the heads of one device."""
        if self._layout.shared:
            k, v = self._shared_head(k), self._shared_head(v)
        layout, (tokens, heads, _) = self._layout, q.shape
        if layout.fp8:
            k, v = rounded_to_fp8(k), rounded_to_fp8(v)
        q, k, v = kernel.with_stored_heads(q, k, v, layout.device_kv_heads)
        if not stored:
            padding = ((0, 0), (0, 0), (0, layout.head_dim - k.shape[2]))
            keys = jnp.pad(k, padding)
            values = None if layout.latent else jnp.pad(v, padding)
            cache = portable.write_kv(cache, keys, values, batch.slots)
        reach = Reach(window, applies, sinks, canvas=canvas)
        if layout.attention == "portable":
            return portable.attend(q, cache, batch, reach), cache
        if layout.attention == "tiles":
            tiles = tile_kernel.tiles_of(batch, tokens, heads)
            operands = q, cache, batch, tiles, layout.device_kv_heads, reach
            return tile_kernel.ragged_paged_attention(*operands, latent=layout.latent), cache
        by_kernel = partial(kernel.ragged_paged_attention, q, cache, batch)
        if applies is None:
            out = by_kernel(window=window)
        else:
            out = jax.lax.cond(applies, partial(by_kernel, window=window), by_kernel)
        return out[:, :heads], cache

    def _shared_head(
        self, heads: Float[Array, "tokens kv_heads head_dim"]
    ) -> Float[Array, "tokens 1 head_dim"]:
        """Return the shared head that this device's queries attend to."""
        device: Int[Array, ""] = jax.lax.axis_index(MODEL_AXIS)
        head = device * heads.shape[1] // self._layout.kv_heads
        return jax.lax.dynamic_slice_in_dim(heads, head, 1, axis=1)
