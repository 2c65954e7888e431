"""What the verifier keeps of a position for its drafter."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.sharding import MODEL_AXIS


@dataclass(frozen=True, slots=True)
class FeatureForm:
    """Which of the target's outputs make a feature, and what becomes of them.

    Features of one form are of no use in another, so two forms are equal only if layers and
    projection are the same.

    Attributes:
        layer_ids: Layers whose outputs, side by side, make a feature; empty for no features.
        projection: Applied to them; None for nothing.
        fingerprint: Identity of the projection's elements; empty without one.
    """

    layer_ids: tuple[int, ...]
    projection: FeatureProjection | None = field(default=None, compare=False)
    fingerprint: str = ""

    def width(self, hidden_size: int) -> int:
        """Return the elements of one feature, for a target of this hidden size."""
        if self.projection is not None:
            return self.projection.width
        return len(self.layer_ids) * hidden_size

    def placed(self, mesh: Mesh | None) -> "FeatureForm":
        """Return the same with the projection on the devices, each with some of its rows.

        In a slice of several hosts all processes must call it; the elements are those of the first.

        Args:
            mesh: The devices; None for the default one.
        """
        projection = self.projection
        if projection is not None and jax.process_count() > 1:
            projection = multihost_utils.broadcast_one_to_all(projection)
        placed = jax.tree.map(lambda array: _placed(array, mesh), projection)
        return replace(self, projection=placed)


def projection_sharding(array: Any, mesh: Mesh) -> NamedSharding:
    """Return where an array of a projection lies: each device has some of the results to compute.

    Args:
        array: The array or its shape.
        mesh: The devices.
    """
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
    """Return what to compile in words, for the other processes of a slice.

    Args:
        features: What a step gives of every position; of its projection only the shape is said.
        max_block: Most tokens of a decoding row, the anchor included.
    """
    words: dict[str, Any] = {
        "max_block": max_block,
        "layer_ids": features.layer_ids,
        "fingerprint": features.fingerprint,
    }
    projection = features.projection
    if projection is not None:
        words["shape"] = projection.weight.shape
        words["dtype"] = projection.weight.dtype.name
        words["eps"] = projection.eps if projection.scale is not None else None
    return json.dumps(words).encode()


def read_compilation(words: bytes) -> tuple[FeatureForm, int]:
    """Return what `compilation_words` was told, with zeros for the elements of the projection."""
    told = json.loads(words)
    projection = None
    if "shape" in told:
        dtype, eps = jnp.dtype(told["dtype"]), told["eps"]
        weight = np.zeros(told["shape"], dtype)
        projection = FeatureProjection(weight)
        if eps is not None:
            projection = FeatureProjection(weight, np.zeros(len(weight), dtype), eps)
    return FeatureForm(tuple(told["layer_ids"]), projection, told["fingerprint"]), told["max_block"]


NO_FEATURES = FeatureForm(())
"""Of a verifier that decodes plainly."""
