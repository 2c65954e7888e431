"""The step of a target as it is compiled: from shapes alone, for devices that need not be there."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import ml_dtypes
import numpy as np
from flax import nnx

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import LayerCaches, allocate_kv
from blockdraft_verifier.device.cache_layout import CacheLayout
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.packing import pack
from blockdraft_verifier.device.step import StepInputs, StepOutputs, run_step

FEATURE_DTYPE = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class TargetStep:
    """What the compiled steps of a target have in common.

    Attributes:
        graph: The target without its weights.
        layout: Of the K/V cache.
        max_pages: Most pages of a sequence.
        features: What the step gives of every position.
        max_block: Most tokens of a decoding row, the anchor included.
    """

    graph: nnx.GraphDef[Decoder]
    layout: CacheLayout
    max_pages: int
    features: FeatureForm
    max_block: int

    def lower(self, weights: Any, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step for one bucket, ready to be compiled.

        It takes the leaves of the weights, the features' projection, caches and `StepInputs`, and
        returns `StepOutputs` and the caches, which it takes over. To flatten the weights at each
        step would take longer than anything else on the host.

        Args:
            weights: The target's arrays, or descriptions of them.
            bucket: Shape of the batch.
        """
        layout = self.layout
        inputs = pack(
            (),
            bucket,
            page_size=layout.page_size,
            num_pages=layout.num_pages,
            max_pages=self.max_pages,
        )
        caches = jax.eval_shape(functools.partial(allocate_kv, layout))
        cache_places = jax.tree.map(
            lambda array: layout.sharding if array.ndim else layout.replicated, caches
        )
        leaves, tree = jax.tree.flatten(weights)
        described = (
            list(map(_described, leaves)),
            jax.tree.map(_described, self.features.projection),
            jax.tree.map(_placed, caches, cache_places),
            jax.tree.map(lambda array: _placed(array, layout.replicated), inputs),
        )
        # Everything the host reads is whole on every device; caches stay where they are.
        places = None if layout.mesh is None else (layout.replicated, cache_places)

        def run(leaves: list[jax.Array], *rest: Any) -> tuple[StepOutputs, LayerCaches]:
            return self._run(jax.tree.unflatten(tree, leaves), *rest)

        step = jax.jit(run, donate_argnums=(2,), out_shardings=places)
        return step.lower(*described)

    def _run(
        self,
        weights: Any,
        projection: FeatureProjection | None,
        caches: LayerCaches,
        inputs: StepInputs,
    ) -> tuple[StepOutputs, LayerCaches]:
        return run_step(
            nnx.merge(self.graph, weights),
            caches,
            inputs,
            layout=self.layout,
            features=replace(self.features, projection=projection),
            max_drafts=max(1, self.max_block - 1),
            feature_dtype=FEATURE_DTYPE,
        )


def _described(array: Any) -> jax.ShapeDtypeStruct:
    on_mesh = isinstance(array.sharding, jax.sharding.NamedSharding)
    return _placed(array, array.sharding if on_mesh else None)


def _placed(array: Any, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
