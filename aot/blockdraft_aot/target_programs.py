"""The verifier's programs, lowered from the shape of its target alone."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from blockdraft_aot.compiled import bytes_on_one_device
from blockdraft_aot.settings import Pair, ServingLimits
from blockdraft_drafter.weight_shapes import state_shapes
from blockdraft_models.decoder import Decoder
from blockdraft_models.quantization import hold_int8
from blockdraft_models.scanned import ScannedDecoder
from blockdraft_models.sharding import Placement
from blockdraft_verifier.buckets import Bucket, all_buckets, next_power_of_two
from blockdraft_verifier.cache_layout import CacheLayout
from blockdraft_verifier.packing import pack_sampling
from blockdraft_verifier.paged_cache import LayerCaches
from blockdraft_verifier.step import StepInputs, StepOutputs
from blockdraft_verifier.target_step import TargetStep


@dataclass(frozen=True, slots=True)
class TargetPrograms:
    """What a verifier compiles on the devices of a mesh.

    Attributes:
        pair: The models.
        limits: Of the service.
        layout: Of the K/V cache.
        dtype: Element type of the weights that are not int8.
    """

    pair: Pair
    limits: ServingLimits
    layout: CacheLayout
    dtype: DTypeLike

    @classmethod
    def on(
        cls, mesh: Mesh, pair: Pair, limits: ServingLimits, num_pages: int, dtype: DTypeLike
    ) -> "TargetPrograms":
        """Return the programs for a mesh; the layers are scanned, as on every TPU."""
        layout = CacheLayout.of(
            pair.target, num_pages, limits.page_size, dtype, mesh=mesh, stacked=True
        )
        return cls(pair, limits, layout, dtype)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every shape of a step, smallest first."""
        limits = self.limits
        return all_buckets(limits.max_sequences, limits.max_step_tokens, self.pair.max_block)

    def kind(self, bucket: Bucket) -> str:
        """Return what a step of this shape is for: "verify" blocks only, or also "prefill"."""
        blocks = bucket.rows * next_power_of_two(self.pair.max_block)
        return "verify" if bucket.tokens <= blocks else "prefill"

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step of a bucket, as a verifier compiles it."""
        decoder = self._decoder()
        step = TargetStep(*self._parts(decoder, self.layout, self.pair.capture))
        return step.lower(self._weights(decoder), bucket)

    def lower_greedy(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step of a bucket whose requests are all greedy, to be counted.

        XLA counts the dearest branch, which sampling is, taken or not.
        """
        decoder = self._decoder()
        step = GreedyStep(*self._parts(decoder, self.layout, self.pair.capture))
        return step.lower(self._weights(decoder), bucket)

    def lower_greedy_without_layers(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the same without the layers: embedding, head, acceptance.

        XLA counts the body of the layers' loop once; it is the difference of the two.
        """
        decoder = nnx.eval_shape(self._unrolled)
        decoder.layers = nnx.List([])
        layout = replace(self.layout, num_layers=0, stacked=False)
        step = GreedyStep(*self._parts(decoder, layout, ()))
        return step.lower(self._weights(decoder), bucket)

    def weight_bytes(self) -> int:
        """Return the bytes of the weights on one device."""
        return bytes_on_one_device(self._weights(self._decoder()))

    def read_bytes(self) -> int:
        """Return the bytes of the weights that a step reads on one device.

        That is all of them, but of an embedding that is not the head some rows only.
        """
        decoder = self._decoder()
        if decoder.head is not None:
            del decoder.embedding
        return bytes_on_one_device(self._weights(decoder))

    def _decoder(self) -> Decoder:
        decoder: Decoder = nnx.eval_shape(lambda: ScannedDecoder(self._unrolled()))
        return decoder

    def _unrolled(self) -> Decoder:
        decoder = Decoder(self.pair.target, dtype=self.dtype, rngs=None)
        return hold_int8(decoder) if self.pair.weights == "int8" else decoder

    def _weights(self, decoder: Decoder) -> Any:
        assert self.layout.mesh is not None
        return state_shapes(nnx.state(decoder), self.pair.target, Placement(self.layout.mesh))

    def _parts(self, decoder: Decoder, layout: CacheLayout, capture: tuple[int, ...]) -> Any:
        max_pages = -(-self.limits.max_context_tokens // self.limits.page_size)
        return nnx.graphdef(decoder), layout, max_pages, capture, self.pair.max_block


class GreedyStep(TargetStep):
    """A step that cannot sample."""

    def _run(
        self, weights: Any, caches: LayerCaches, inputs: StepInputs
    ) -> tuple[StepOutputs, LayerCaches]:
        greedy = inputs._replace(
            # It is made on the host, whose arrays nothing traced can index.
            sampling=jax.tree.map(jnp.asarray, pack_sampling((), inputs.draft_count.shape[0])),
            log_probs_wanted=jnp.zeros(1, jnp.bool_),
        )
        # Not `super()`: a dataclass with slots is not the class that its methods saw.
        return TargetStep._run(self, weights, caches, greedy)
