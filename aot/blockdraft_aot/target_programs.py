"""The verifier's programs, lowered from the shape of its target alone."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from blockdraft_aot.compiled import bytes_on_one_device
from blockdraft_aot.pair import Pair
from blockdraft_aot.settings import ServingLimits
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import Placement, state_shapes
from blockdraft_models.weights.quantization import hold_int8
from blockdraft_verifier.device.buckets import Bucket, all_buckets, next_power_of_two
from blockdraft_verifier.device.cache import LayerCaches
from blockdraft_verifier.device.cache_layout import CacheLayout
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.least_step import least_step_tokens
from blockdraft_verifier.device.packing import pack_sampling
from blockdraft_verifier.device.step import StepInputs, StepOutputs
from blockdraft_verifier.device.target_step import TargetStep


@dataclass(frozen=True, slots=True)
class TargetPrograms:
    """What a verifier compiles on the devices of a mesh.

    Attributes:
        pair: The models.
        limits: Of the service.
        layout: Of the K/V cache.
        features: What a step gives of every position.
        decoder: The target with scanned layers, its weights only described.
        without_layers: The target without its layers, likewise.
    """

    pair: Pair
    limits: ServingLimits
    layout: CacheLayout
    features: FeatureForm
    decoder: Decoder
    without_layers: Decoder

    @classmethod
    def on(
        cls, mesh: Mesh, pair: Pair, limits: ServingLimits, num_pages: int, dtype: DTypeLike
    ) -> "TargetPrograms":
        """Return the programs for a mesh; the layers are scanned, as on every TPU."""
        layout = CacheLayout.of(
            pair.target, num_pages, limits.page_size, dtype, mesh=mesh, stacked=True
        )

        def scanned() -> ScannedDecoder:
            return ScannedDecoder(_unrolled(pair, pair.target, dtype))

        # One layer is made and dropped: a decoder has at least one.
        shallow = replace(pair.target, num_layers=1)
        bare = nnx.eval_shape(lambda: _unrolled(pair, shallow, dtype))
        bare.layers = nnx.List([])
        features = pair.features(mesh, dtype)
        return cls(pair, limits, layout, features, nnx.eval_shape(scanned), bare)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every shape of a step, smallest first."""
        limits = self.limits
        return all_buckets(
            limits.max_sequences, limits.max_step_tokens, self.pair.max_block, self.least_tokens
        )

    @property
    def unpadded_buckets(self) -> tuple[Bucket, ...]:
        """The shapes that plain steps would have if short steps were not padded, smallest first."""
        limits = self.limits
        every = all_buckets(limits.max_sequences, limits.max_step_tokens, self.pair.max_block)
        plain = (bucket for bucket in every if bucket.tokens == bucket.rows)
        return tuple(bucket for bucket in plain if bucket.tokens < self.least_tokens)

    @property
    def least_tokens(self) -> int:
        """The fewest tokens of a step."""
        setting = self.limits.least_step_tokens
        return next_power_of_two(least_step_tokens(setting, "tpu"))

    def kind(self, bucket: Bucket) -> str:
        """Return what a step of this shape is for: "verify" blocks only, or also "prefill"."""
        blocks = bucket.rows * next_power_of_two(self.pair.max_block)
        return "verify" if bucket.tokens <= max(blocks, self.least_tokens) else "prefill"

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step of a bucket, as a verifier compiles it."""
        step = TargetStep(*self._parts(self.decoder, self.layout, self.features))
        return step.lower(self._weights(self.decoder), bucket)

    def lower_greedy(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step of a bucket whose requests are all greedy, to be counted.

        XLA counts the dearest branch, which sampling is, taken or not.
        """
        step = GreedyStep(*self._parts(self.decoder, self.layout, self.features))
        return step.lower(self._weights(self.decoder), bucket)

    def lower_greedy_without_layers(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the same without the layers: embedding, head, acceptance.

        XLA counts the body of the layers' loop once; it is the difference of the two.
        """
        layout = replace(self.layout, num_layers=0, stacked=False)
        step = GreedyStep(*self._parts(self.without_layers, layout, NO_FEATURES))
        return step.lower(self._weights(self.without_layers), bucket)

    def weight_bytes(self) -> int:
        """Return the bytes of the weights on one device."""
        return bytes_on_one_device((self._weights(self.decoder), self.features.projection))

    def read_bytes(self) -> int:
        """Return the bytes of the weights that a step reads on one device.

        That is all of them, but of an embedding that is not the head some rows only.
        """
        embedding = self._weights(self.decoder)["embedding"]
        unread = 0 if self.decoder.head is None else bytes_on_one_device(embedding)
        return self.weight_bytes() - unread

    def _weights(self, decoder: Decoder) -> Any:
        assert self.layout.mesh is not None
        return state_shapes(nnx.state(decoder), self.pair.target, Placement(self.layout.mesh))

    def _parts(self, decoder: Decoder, layout: CacheLayout, features: FeatureForm) -> Any:
        max_pages = -(-self.limits.max_context_tokens // self.limits.page_size)
        return nnx.graphdef(decoder), layout, max_pages, features, self.pair.max_block


def _unrolled(pair: Pair, config: DecoderConfig, dtype: DTypeLike) -> Decoder:
    decoder = Decoder(config, dtype=dtype, rngs=None)
    return hold_int8(decoder) if pair.weights == "int8" else decoder


class GreedyStep(TargetStep):
    """A step that cannot sample."""

    def _run(
        self,
        weights: Any,
        projection: FeatureProjection | None,
        caches: LayerCaches,
        inputs: StepInputs,
    ) -> tuple[StepOutputs, LayerCaches]:
        greedy = inputs._replace(
            # It is made on the host, whose arrays nothing traced can index.
            sampling=jax.tree.map(jnp.asarray, pack_sampling((), inputs.draft_count.shape[0])),
            log_probs_wanted=jnp.zeros(1, jnp.bool_),
        )
        # Not `super()`: a dataclass with slots is not the class that its methods saw.
        return TargetStep._run(self, weights, projection, caches, greedy)
