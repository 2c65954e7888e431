"""The recurrence of one layer in a ragged batch, over the states of its sequences.

The inputs of this step are stored beside those of the chunk that are there already. Then every
chunk of which a row has a token is computed whole, from them and the state before it: by one loop,
whose body has the same shapes in all steps. Only a chunk whose last token is there leaves a state.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS, DeltaInputs, DeltaWeights, chunk
from blockdraft_models.platform import by_platform
from blockdraft_verifier.device.portable_attention import RaggedBatch
from blockdraft_verifier.device.states import STORED_TOKENS, DeltaCache, StateLayout

# Rows whose chunks are computed together, as more heads. A CPU gains nothing by it.
_TOGETHER, _TOGETHER_ON_CPU = 8, 1


class _Rows(NamedTuple):
    """The rows of a batch, or one of them."""

    slot: Any  # Int[Array, "*rows"], in the arrays of a cache
    token: Any  # Int[Array, "*rows"], flat index of the first token
    start: Any  # Int[Array, "*rows"], position of the first token
    end: Any  # Int[Array, "*rows"], position after the last one; `start` for padding

    @property
    def chunks(self) -> Int[Array, " rows"]:
        """The number of chunks of which each row has tokens."""
        last = (self.end + CHUNK_TOKENS - 1) // CHUNK_TOKENS
        return jnp.where(self.end > self.start, last - self.start // CHUNK_TOKENS, 0)

    def part(self, at: Int[Array, ""]) -> tuple[Bool[Array, " chunk"], Int[Array, ""]]:
        """Return whether positions of a chunk are the row's, and the first one's padded index."""
        position = at * CHUNK_TOKENS + jnp.arange(CHUNK_TOKENS, dtype=jnp.int32)
        of_row = (position >= self.start) & (position < self.end)
        return of_row, CHUNK_TOKENS + self.token + at * CHUNK_TOKENS - self.start


def recur(
    layout: StateLayout,
    weights: DeltaWeights,
    inputs: DeltaInputs,
    cache: DeltaCache,
    batch: RaggedBatch,
    slots: Int[Array, " rows"],
) -> tuple[Float[Array, "tokens value_heads value_dim"], DeltaCache]:
    """Return the outputs in the type of the inputs, and the updated cache.

    On a mesh every device computes its own heads, without talking to the others.
    """
    if cache.layer is not None:
        slots = slots + cache.layer * layout.num_slots
    lengths = jnp.diff(batch.row_starts)
    ends = batch.context_lengths
    rows = _Rows(slots, batch.row_starts[:-1], ends - lengths, ends)
    recur = _on_this_device
    if layout.mesh is not None:
        # Heads are along these axes of weights, inputs, states and stored inputs.
        of_weights, of_inputs, of_states, of_stored = map(layout.spec, (0, 1, 1, 2))
        recur = jax.shard_map(
            recur,
            mesh=layout.mesh,
            in_specs=(of_weights, of_inputs, of_states, of_stored, PartitionSpec()),
            out_specs=(of_inputs, of_states, of_stored),
            check_vma=False,
        )
    outputs, states, stored = recur(weights, inputs, cache.states, cache.stored, rows)
    # After the last layer comes the first one of the next step.
    layer = None if cache.layer is None else (cache.layer + 1) % layout.num_layers
    return outputs, DeltaCache(states, stored, layer)


def _on_this_device(
    weights: DeltaWeights, inputs: DeltaInputs, states: Array, stored: DeltaInputs, rows: _Rows
) -> tuple[Array, Array, DeltaInputs]:
    operands = weights, inputs, states, stored, rows
    result: tuple[Array, Array, DeltaInputs] = by_platform(
        *operands,
        cpu=partial(_by_chunks, together=_TOGETHER_ON_CPU),
        default=partial(_by_chunks, together=_TOGETHER),
    )
    return result


def _by_chunks(
    weights: DeltaWeights,
    inputs: DeltaInputs,
    states: Float[Array, "slots value_heads key_dim value_dim"],
    stored: DeltaInputs,
    rows: _Rows,
    *,
    together: int,
) -> tuple[Float[Array, "tokens value_heads value_dim"], Array, DeltaInputs]:
    """Return outputs, states and stored inputs; chunks of `together` rows are computed at once."""
    tokens, heads, width = inputs.value.shape
    padding = -len(rows.slot) % together
    rows = _Rows(*(jnp.pad(array, (0, padding)) for array in rows))
    padded = jax.tree.map(
        lambda x: jnp.pad(x, ((CHUNK_TOKENS, CHUNK_TOKENS), *((0, 0),) * (x.ndim - 1))), inputs
    )
    wide_weights = DeltaWeights(*(jnp.concatenate([part] * together) for part in weights))

    def compute(number: Array, carry: _Carry, group: _Rows) -> _Carry:
        outputs, states, stored = carry
        windows, befores = [], []
        for row in _single_rows(group, together):
            at = row.start // CHUNK_TOKENS + number
            stored = _with_inputs(stored, padded, row, at)
            windows.append(_window(stored, row, at, weights.lead))
            before = jax.lax.dynamic_index_in_dim(states, 2 * row.slot + at % 2, keepdims=False)
            befores.append(jnp.where(at > 0, before, 0.0))
        window = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *windows)
        out, after = chunk(wide_weights, jnp.concatenate(befores), window)
        outs, afters = jnp.split(out, together, axis=1), jnp.split(after, together)
        for row, out, after in zip(_single_rows(group, together), outs, afters, strict=True):
            at = row.start // CHUNK_TOKENS + number
            place = 2 * row.slot + (at + 1) % 2
            whole = (at + 1) * CHUNK_TOKENS <= row.end
            states = _replaced(states, (place,), after[None], whole)
            of_row, first = row.part(at)
            out = out.astype(outputs.dtype)
            outputs = _replaced(outputs, (first,), out, of_row[:, None, None])
        return outputs, states, stored

    def compute_rows(index: Array, carry: _Carry) -> _Carry:
        first = index * together
        group = _Rows(*(jax.lax.dynamic_slice_in_dim(x, first, together) for x in rows))
        chunk_count = jnp.max(group.chunks)
        carry = jax.lax.fori_loop(0, chunk_count, partial(compute, group=group), carry)
        return carry

    outputs = jnp.zeros((tokens + 2 * CHUNK_TOKENS, heads, width), inputs.value.dtype)
    # Rows with tokens come first.
    live = jnp.sum(rows.chunks > 0, dtype=jnp.int32)
    groups = (live + together - 1) // together
    carry = jax.lax.fori_loop(0, groups, compute_rows, (outputs, states, stored))
    return carry[0][CHUNK_TOKENS:-CHUNK_TOKENS], *carry[1:]


_Carry = tuple[Array, Array, DeltaInputs]


def _single_rows(rows: _Rows, count: int) -> list[_Rows]:
    return [_Rows(*(array[index] for array in rows)) for index in range(count)]


def _with_inputs(
    stored: DeltaInputs, padded: DeltaInputs, row: _Rows, at: Int[Array, ""]
) -> DeltaInputs:
    """Return the stored inputs with those of this step in a chunk of a row."""
    of_row, first = row.part(at)

    def write(stored: Array, padded: Array) -> Array:
        here = jax.lax.dynamic_slice_in_dim(padded, first, CHUNK_TOKENS)[None]
        place = row.slot, at * CHUNK_TOKENS % STORED_TOKENS
        where = of_row.reshape((1, -1) + (1,) * (here.ndim - 2))
        return _replaced(stored, place, here.astype(stored.dtype), where)

    written: DeltaInputs = jax.tree.map(write, stored, padded)
    return written


def _window(stored: DeltaInputs, row: _Rows, at: Int[Array, ""], lead: int) -> DeltaInputs:
    """Return the inputs of a chunk of a row and of `lead` positions before; zeros for others."""
    start = at * CHUNK_TOKENS
    position = start - lead + jnp.arange(lead + CHUNK_TOKENS, dtype=jnp.int32)
    there = (position >= 0) & (position < row.end)

    def window(stored: Array) -> Array:
        def part(start: Array, count: int) -> Array:
            index: Any = row.slot, start % STORED_TOKENS, *[0] * (stored.ndim - 2)
            return jax.lax.dynamic_slice(stored, index, (1, count, *stored.shape[2:]))[0]

        both = jnp.concatenate([part(start - lead, lead), part(start, CHUNK_TOKENS)])
        return jnp.where(there.reshape((-1,) + (1,) * (both.ndim - 1)), both, 0.0)

    inputs: DeltaInputs = jax.tree.map(window, stored)
    return inputs


def _replaced(
    array: Array, place: tuple[Any, ...], part: Array, where: Bool[Array, "..."]
) -> Array:
    """Return an array with a part, from a place on, replaced where a condition holds."""
    index: Any = *place, *[0] * (array.ndim - len(place))
    there = jax.lax.dynamic_slice(array, index, part.shape)
    return jax.lax.dynamic_update_slice(array, jnp.where(where, part, there), index)
