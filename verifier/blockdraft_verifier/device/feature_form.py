"""Features that the verifier keeps for its drafter, and how they leave the device."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.sharding import MODEL_AXIS
from blockdraft_verifier.device.portable_attention import RaggedBatch


@dataclass(frozen=True, slots=True)
class FeatureForm:
    """The layers whose outputs make a feature, and the projection applied to them.

    Features of one form are of no use in another, so two forms are equal only if layers and
    projection are the same.
    """

    # Layers whose outputs, side by side, make a feature; empty for no features.
    layer_ids: tuple[int, ...]
    # Applied to them; None for nothing.
    projection: FeatureProjection | None = field(default=None, compare=False)
    fingerprint: str = ""  # identity of the projection's elements; empty without one

    def width(self, hidden_size: int) -> int:
        """Return the elements of one feature, for a target of this hidden size."""
        if self.projection is not None:
            return self.projection.width
        return len(self.layer_ids) * hidden_size

    def placed(self, mesh: Mesh | None) -> "FeatureForm":
        """Return the same with the projection on the devices, each with some of its rows.

        In a slice of several hosts all processes must call it; the elements are those of the first.
        """
        projection = self.projection
        if projection is not None and jax.process_count() > 1:
            projection = multihost_utils.broadcast_one_to_all(projection)
        placed = jax.tree.map(lambda array: _placed(array, mesh), projection)
        return replace(self, projection=placed)


def projection_sharding(array: Any, mesh: Mesh) -> NamedSharding:
    """Return the placement of a projection's array: each device computes some of the results."""
    divided = array.shape[0] % mesh.shape[MODEL_AXIS] == 0
    return NamedSharding(mesh, PartitionSpec(MODEL_AXIS if divided else None))


def _placed(array: np.ndarray, mesh: Mesh | None) -> jax.Array:
    if mesh is None:
        return jnp.asarray(array)
    # Unlike a plain transfer, this also fills devices of several hosts.
    place = projection_sharding(array, mesh)
    placed: jax.Array = jax.make_array_from_callback(array.shape, place, array.__getitem__)
    return placed


def compilation_words(features: FeatureForm, max_block: int) -> bytes:
    """Return the arguments of a compilation as bytes, for the other processes of a slice."""
    projection, shape = features.projection, None
    if projection is not None:
        scaled = projection.scale is not None, projection.input_scale is not None
        weight = projection.weight
        shape = weight.shape, weight.dtype.name, projection.eps, scaled, projection.joint
    return json.dumps((max_block, features.layer_ids, features.fingerprint, shape)).encode()


def read_compilation(words: bytes) -> tuple[FeatureForm, int]:
    """Return the arguments of `compilation_words`, with zeros as elements of the projection."""
    max_block, layer_ids, fingerprint, form = json.loads(words)
    projection = None
    if form is not None:
        shape, dtype, eps, (scaled, input_scaled), joint = form
        weight = np.zeros(shape, jnp.dtype(dtype))
        scale = np.zeros_like(weight[:, 0]) if scaled else None
        input_scale = np.zeros_like(weight[0]) if input_scaled else None
        projection = FeatureProjection(weight, scale, eps, input_scale, joint)
    return FeatureForm(tuple(layer_ids), projection, fingerprint), max_block


NO_FEATURES = FeatureForm(())
"""The form of a verifier that decodes plainly."""


def final_positions_first(
    batch: RaggedBatch,
    draft_count: Int[Array, " rows"],
    accepted: Int[Array, " rows"],
    token_count: int,
) -> Int[Array, " tokens"]:
    """Return flat token indices with rejected drafts and padding moved to the end.

    Features of rejected tokens must never leave the verifier. How many positions a step makes final
    is known once it has run, and what leaves a device has a fixed shape: so the final ones come
    first, cut into pieces, of which the host reads at most twice as much as there is.
    """
    token = jnp.arange(token_count, dtype=jnp.int32)
    row = jnp.searchsorted(batch.row_starts[1:], token, side="right")
    row = jnp.minimum(row, draft_count.shape[0] - 1).astype(jnp.int32)
    ends = batch.row_starts[1:] - draft_count + accepted
    final = (token < ends[row]) & (token < batch.row_starts[-1])
    return jnp.argsort(~final, stable=True)


def cut(
    features: Float[Array, "tokens width"], first: int
) -> tuple[Float[Array, "piece width"], ...]:
    """Cut features into pieces: the first of `first` positions, then each as long as all before."""
    total = features.shape[0]
    ends = [min(first, total)]
    while ends[-1] < total:
        ends.append(min(2 * ends[-1], total))
    starts = [0, *ends[:-1]]
    return tuple(features[start:end] for start, end in zip(starts, ends, strict=True))


def split(pieces: Sequence[Array], counts: Sequence[int]) -> list[np.ndarray]:
    """Return each row's features, as many as its count; unused pieces stay on the device."""
    needed = sum(counts)
    starts = itertools.accumulate((piece.shape[0] for piece in pieces), initial=0)
    needed_pieces = [piece for piece, start in zip(pieces, starts, strict=False) if start < needed]
    read = iter(jax.device_get(needed_pieces))
    rows: list[np.ndarray] = []
    piece, start = np.empty((0, pieces[0].shape[1]), pieces[0].dtype), 0
    for count in counts:
        parts = [piece[start : start + count]]
        start += count
        while (missing := start - len(piece)) > 0:
            piece, start = next(read), missing
            parts.append(piece[:missing])
        rows.append(np.concatenate(parts) if len(parts) > 1 else parts[0])
    return rows
