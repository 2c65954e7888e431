"""What is compiled: a target and the drafter beside it."""

from dataclasses import dataclass

import jax
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from blockdraft_drafter.catalogue import method_of
from blockdraft_drafter.config import DraftConfig
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm, projection_sharding


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the drafter beside it.

    Attributes:
        target: The target's shape.
        drafter: The drafter's shape; None to decode plainly.
        weights: How the matrices of the target's layers are stored.
        lookup_block: Most tokens of a verification of what lookup found, the target's newest token
            included; 1 without lookup.
    """

    target: DecoderConfig
    drafter: DraftConfig | None
    weights: WeightFormat = "float"
    lookup_block: int = 1

    def features(self, mesh: Mesh, dtype: DTypeLike) -> FeatureForm:
        """Return what the verifier gives of a position; its projection is only described.

        Args:
            mesh: The verifier's devices.
            dtype: Element type of the drafter.
        """
        drafter = self.drafter
        if drafter is None:
            return NO_FEATURES
        module = method_of(drafter).module
        projection = jax.eval_shape(
            lambda: module(drafter, dtype=dtype, rngs=nnx.Rngs(0)).projection
        )
        placed = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(
                array.shape, array.dtype, sharding=projection_sharding(array, mesh)
            ),
            projection,
        )
        return FeatureForm(drafter.target_layer_ids, placed)

    @property
    def max_block(self) -> int:
        """Most tokens of a decoding row, the anchor included."""
        drafter_block = 1 if self.drafter is None else self.drafter.block_size
        return max(drafter_block, self.lookup_block)
