"""The states of layers that recur, on the devices: of each sequence that runs, in a slot.

A slot of a layer holds two states and the inputs of the newest positions. The state before chunk
number n lies in place n % 2: a verified block crosses the end of one chunk at most, so a block that
is not accepted leaves the state that comes before it as it was. The inputs of the chunk that is not
whole yet are stored as keys and values are, and overwritten as they are (docs/adr/0064).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Int, Int32

from blockdraft_models.decoder.config import DecoderConfig, DeltaSizes
from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS, DeltaInputs
from blockdraft_models.decoder.sharding import MODEL_AXIS
from blockdraft_models.words import Words

STORED_TOKENS = 2 * CHUNK_TOKENS
"""Positions whose inputs are stored: those of two chunks, which take turns."""


class DeltaCache(NamedTuple):
    """The slots of one layer, or of all layers and the number of the one whose turn it is."""

    states: Any  # Float[Array, "two_of_each_slot value_heads key_dim value_dim"]
    stored: DeltaInputs  # each [slots, STORED_TOKENS, ...]
    layer: Any = None  # Int[Array, ""]


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Shape and place of the states. Heads are divided over the devices or whole on each."""

    sizes: DeltaSizes
    num_layers: int
    sequences: int  # that run
    num_slots: int  # of each layer
    dtype: DTypeLike  # of inputs
    mesh: Mesh | None = None  # the devices; None for the default one
    stacked: bool = False  # whether one array holds all layers

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        sequences: int,
        dtype: DTypeLike,
        mesh: Mesh | None = None,
        *,
        stacked: bool = False,
        snapshots: int = 0,
    ) -> "StateLayout | None":
        """Return the layout for a target, None for one without states."""
        if config.delta is None:
            return None
        sizes = sum(config.recurrent), sequences, sequences + snapshots
        return cls(config.delta, *sizes, dtype, mesh, stacked)

    @property
    def most_block(self) -> int:
        """Most tokens of a block that may be rejected.

        What is written of it must leave the inputs of the chunk in which it begins, and those that
        a convolution reaches back to.
        """
        return STORED_TOKENS - (CHUNK_TOKENS - 1) - (self.sizes.taps - 1)

    @property
    def most_copies(self) -> int:
        """Most copies of slots before a step: each sequence is saved, and another begun there."""
        return 2 * self.sequences

    def copies_in(self, words: Words) -> Int32[np.ndarray, "copies source_and_target"] | None:
        """Return the last array of a `StepInputs`, the copies, from its words; None without any."""
        copies = words[-2 * self.most_copies :].reshape(-1, 2)
        return copies if copies[0, 0] >= 0 else None

    @property
    def divided(self) -> bool:
        """Whether each device holds some of the heads."""
        return self.mesh is not None and self.sizes.key_heads % self.mesh.shape[MODEL_AXIS] == 0

    def spec(self, axis: int) -> PartitionSpec:
        """Return the partition of an array whose heads are along an axis."""
        return PartitionSpec(*[None] * axis, MODEL_AXIS) if self.divided else PartitionSpec()

    @property
    def bytes(self) -> int:
        """Bytes of all layers and slots on one device."""
        devices = self.mesh.shape[MODEL_AXIS] if self.mesh is not None and self.divided else 1

        def size(shape: tuple[int, ...], dtype: DTypeLike, _: PartitionSpec) -> int:
            return math.prod(shape) * jnp.dtype(dtype).itemsize // devices

        return sum(jax.tree.leaves(self._of_each_array(size)))

    def allocate(self) -> list[DeltaCache]:
        """Return zeroed caches: one of each layer, or one of all."""

        def zeros(shape: tuple[int, ...], dtype: DTypeLike, spec: PartitionSpec) -> Array:
            return jnp.zeros(shape, dtype, device=self._place(spec))

        return self._of_each_array(zeros)

    def places(self) -> list[DeltaCache]:
        """Return the placement of each array, in the form of the caches."""
        return self._of_each_array(lambda shape, dtype, spec: self._place(spec))

    @property
    def whole(self) -> NamedSharding | None:
        """Placement of arrays that are whole on every device; None for the default device."""
        return self._place(PartitionSpec())

    def _place(self, spec: PartitionSpec) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, spec)

    def _of_each_array(
        self, make: Callable[[tuple[int, ...], DTypeLike, PartitionSpec], Any]
    ) -> list[DeltaCache]:
        """Return caches made of what a function returns for each array."""
        sizes, slots = self.sizes, self.num_slots * (self.num_layers if self.stacked else 1)
        states = 2 * slots, sizes.value_heads, sizes.key_dim, sizes.value_dim

        def stored(*of_token: int) -> Any:
            return make((slots, STORED_TOKENS, *of_token), self.dtype, self.spec(2))

        return [
            DeltaCache(
                make(states, jnp.float32, self.spec(1)),
                DeltaInputs(
                    stored(sizes.key_heads, sizes.key_dim),
                    stored(sizes.key_heads, sizes.key_dim),
                    stored(sizes.value_heads, sizes.value_dim),
                    stored(sizes.value_heads),
                    stored(sizes.value_heads),
                ),
                make((), jnp.int32, PartitionSpec()) if self.stacked else None,
            )
            for _ in range(1 if self.stacked else self.num_layers)
        ]


def lower_copies(layout: StateLayout) -> jax.stages.Lowered:
    """Lower the program that copies slots to others, as `StepInputs.state_copies` lists them.

    It is run before a step, and only if there are any: a loop in the step itself would have XLA
    copy all slots in every step on CPU.
    """

    def described(array: Any, place: NamedSharding | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)

    whole, places = layout.whole, layout.places()
    caches = jax.tree.map(described, jax.eval_shape(layout.allocate), places)
    copies = jax.ShapeDtypeStruct((layout.most_copies, 2), jnp.int32, sharding=whole)
    run = jax.jit(
        partial(_with_copies, layout=layout),
        donate_argnums=0,
        out_shardings=None if layout.mesh is None else places,
    )
    return run.lower(caches, copies)


def _with_copies(
    caches: list[DeltaCache], copies: Int[Array, "copies source_and_target"], layout: StateLayout
) -> list[DeltaCache]:
    """Return caches of which slots are copied to others, in order; a source of -1 ends the list."""
    layers, slots = layout.num_layers if layout.stacked else 1, layout.num_slots

    def copied(index: Array, by_slot: Any) -> Any:
        source, target = copies[index]

        def copy(array: Array) -> Array:
            part = jax.lax.dynamic_slice_in_dim(array, source, 1, axis=1)
            return jax.lax.dynamic_update_slice_in_dim(array, part, target, axis=1)

        return jax.tree.map(copy, by_slot)

    arrays = [(cache.states, cache.stored) for cache in caches]
    by_slot = jax.tree.map(lambda x: x.reshape(layers, slots, -1, *x.shape[1:]), arrays)
    count = jnp.sum(copies[:, 0] >= 0, dtype=jnp.int32)
    by_slot = jax.lax.fori_loop(0, count, copied, by_slot)
    arrays = jax.tree.map(lambda x, like: x.reshape(like.shape), by_slot, arrays)
    return [
        DeltaCache(states, stored, cache.layer)
        for (states, stored), cache in zip(arrays, caches, strict=True)
    ]
