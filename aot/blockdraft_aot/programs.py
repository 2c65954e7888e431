"""Every program of the two processes, lowered from the shapes of the models alone.

XLA's counts leave out what happens inside a kernel, and take the experts' grouped products to read
all experts: attention, and the experts that are read, are counted by hand, and so are features.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from blockdraft_aot.compiled import Counts, Program, bytes_on_one_device, compile_and_read
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.settings import ServingLimits
from blockdraft_drafter.compiled.definition import DraftConfig
from blockdraft_drafter.compiled.programs import DraftPrograms
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.periods import periods
from blockdraft_models.decoder.sampling import pack_sampling
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import EXPERTS, Placement, state_shapes
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.precision import FP8
from blockdraft_models.weights.quantization import hold_int8
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device import kernel_attention, tile_kernel
from blockdraft_verifier.device.buckets import Bucket, all_buckets, least_step_tokens
from blockdraft_verifier.device.cache import CacheLayout, PagedCache
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.packing import StepInputs
from blockdraft_verifier.device.sizes import canvas_signals
from blockdraft_verifier.device.states import StateLayout
from blockdraft_verifier.device.step import StepOutputs, TargetStep
from blockdraft_verifier.device.token_limits import TokenLimits

# Divides over the chips of a host.
_FEW_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class TargetPrograms:
    """The programs that a verifier compiles for the devices of a mesh."""

    pair: Pair  # the models
    limits: ServingLimits  # of the service
    layout: CacheLayout  # of the K/V cache
    features: FeatureForm  # form of the features of every position
    decoder: Decoder  # the target with scanned layers, its weights only described
    without_layers: Decoder  # the target without its layers
    # No layers, those of the first period, those of the first two, and so on, around a vocabulary
    # of hardly any size. A dense MLP, as wide as the experts of a token together, replaces experts.
    prefixes: tuple[Decoder, ...]

    @classmethod
    def on(
        cls, mesh: Mesh, pair: Pair, limits: ServingLimits, num_pages: int, dtype: DTypeLike
    ) -> "TargetPrograms":
        """Return the programs for a mesh; the layers are scanned, as on every TPU."""
        target = pair.target
        layout = CacheLayout.of(
            target,
            num_pages,
            limits.page_size,
            FP8 if limits.kv_cache_dtype == "fp8" else dtype,
            mesh=mesh,
            stacked=True,
            fp8=limits.kv_cache_dtype == "fp8",
            states=StateLayout.of(
                target,
                limits.max_sequences,
                dtype,
                mesh,
                stacked=True,
                snapshots=EngineSettings().state_snapshots,
            ),
        )

        layout = replace(layout, signals=canvas_signals(target, limits.max_sequences, dtype))

        def unrolled(config: DecoderConfig) -> Decoder:
            decoder = Decoder(config, dtype=dtype, rngs=None)
            decoder.divide(mesh)
            return hold_int8(decoder) if pair.weights == "int8" else decoder

        def bare(config: DecoderConfig) -> Decoder:
            # One layer is made and dropped: a decoder has at least one.
            decoder = nnx.eval_shape(lambda: unrolled(config.shortened(1)))
            decoder.layers = nnx.List([])
            return decoder

        def scanned(config: DecoderConfig) -> Decoder:
            return nnx.eval_shape(lambda: ScannedDecoder(unrolled(config)))

        def prefixes(config: DecoderConfig) -> Iterator[Decoder]:
            yield bare(config)
            for period in periods(config):
                yield scanned(config.shortened(period.first + period.layers))

        counted = replace(
            target,
            vocab_size=_FEW_TOKENS,
            bos_token_id=None,
            eos_token_ids=(0,),
            diffusion=None if target.canvas_grain > 1 else target.diffusion,
            num_experts=0,
            parallel_expert_size=0,
            intermediate_size=target.active_size,
        )
        decoder, without_layers, parts = scanned(target), bare(target), tuple(prefixes(counted))
        # Those of all layers, however few there are.
        without_layers.layer_embeddings = decoder.layer_embeddings
        for part in parts:
            part.layer_embeddings = parts[-1].layer_embeddings
        features = pair.features(mesh, dtype)
        return cls(pair, limits, layout, features, decoder, without_layers, parts)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every shape of a step, smallest first."""
        limits = self.limits
        return all_buckets(
            limits.max_sequences, limits.max_step_tokens, self.pair.max_block, self._least_tokens
        )

    @property
    def _least_tokens(self) -> int:
        least = self.limits.least_step_tokens or least_step_tokens("tpu")
        return next_power_of_two(max(least, self.pair.target.canvas_grain))

    def kind(self, bucket: Bucket) -> str:
        """Return the kind of a step of this shape: "verify" for blocks only, else "prefill"."""
        blocks = bucket.rows * next_power_of_two(self.pair.max_block)
        return "verify" if bucket.tokens <= max(blocks, self._least_tokens) else "prefill"

    def program(self, bucket: Bucket, context_tokens: int) -> Program:
        """Return the program for one bucket, each sequence with so many tokens in the cache."""
        layout, config = self.layout, self.pair.target
        devices = 1 if layout.mesh is None or not layout.divided else layout.mesh.size
        attending = [layer for layer in range(config.num_layers) if not config.is_recurrent(layer)]
        of_layers = [layout.of_layers[config.cache_number(layer)] for layer in attending]
        position_bytes = sum(of_layer.layer_bytes for of_layer in of_layers) // layout.page_size
        heads = config.num_heads // devices
        # A kernel reads the context of a row again for each block of its queries.
        block = {
            "portable": bucket.tokens,
            "library": kernel_attention.QUERY_BLOCK_TOKENS,
            "tiles": tile_kernel.tile_tokens(bucket.tokens // bucket.rows, heads),
        }[layout.attention]
        reads = max(bucket.rows, -(-bucket.tokens // block))
        attention = _attention(
            config,
            heads=heads,
            queries=bucket.tokens,
            context_tokens=context_tokens,
            context_bytes=reads * context_tokens * position_bytes,
        )
        return Program(
            self.kind(bucket),
            bucket.rows,
            bucket.tokens,
            partial(self.lower, bucket),
            traced_layers=sum(period.length for period in periods(config)),
            by_hand=attention.plus(self._recurrence(bucket)).plus(self._rest_by_hand(bucket)),
            count=partial(self.count_greedy, bucket),
            least_bytes=self._read_bytes(bucket) + attention.bytes,
        )

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step of a bucket, as a verifier compiles it."""
        step = TargetStep(*self._parts(self.decoder, self.layout, self.features))
        return step.lower(self._weights(self.decoder), bucket)

    def count_greedy(self, bucket: Bucket) -> Counts:
        """Return XLA's counts of a step of greedy requests; the counts by hand are not in them.

        XLA counts the most expensive branch, sampling, taken or not. It counts the body of a
        period's loop once: the difference to a step without the period. Both have a small
        vocabulary, as steps with a large embedding also differ in how they read it.
        """
        alone: Any = {"num_layers": 1, "stacked": False, "of_global": None, "states": None}
        one_layer = replace(self.layout, windowed=(), **alone)

        def count(decoder: Decoder, layout: CacheLayout) -> Counts:
            step = GreedyStep(*self._parts(decoder, layout, NO_FEATURES))
            return compile_and_read(step.lower(self._weights(decoder), bucket)).counts

        total, before = count(self.without_layers, one_layer), count(self.prefixes[0], one_layer)
        for period, prefix in zip(periods(self.pair.target), self.prefixes[1:], strict=True):
            after = count(prefix, self.layout)
            total, before = total.plus(after.plus(before, times=-1), times=period.count), after
        return total

    def _recurrence(self, bucket: Bucket) -> Counts:
        """Return the counts of what layers with a state compute for all chunks of a step.

        A product of float32 takes six passes of a matrix unit. A state is read and written.
        """
        layout = self.layout.states
        if layout is None:
            return Counts()
        sizes, rows = layout.sizes, min(bucket.rows, bucket.tokens)
        chunks = rows * math.ceil(bucket.tokens / rows / CHUNK_TOKENS) * layout.num_layers
        devices = 1 if layout.mesh is None or not layout.divided else layout.mesh.size
        state = sizes.key_dim * sizes.value_dim
        # With the state: two products of a chunk's rows, and one that changes it.
        products = 3 * CHUNK_TOKENS * state
        products += 2 * CHUNK_TOKENS**2 * (sizes.key_dim + sizes.value_dim) + 10 * CHUNK_TOKENS**3
        heads = chunks * sizes.value_heads / devices
        return Counts(6 * 2.0 * heads * products, 2 * 4.0 * heads * state)

    def _rest_by_hand(self, bucket: Bucket) -> Counts:
        """Return the counts of projected features and of experts that XLA leaves out."""
        decoders = self.decoder, self.without_layers, self.prefixes[-1], self.prefixes[0]
        whole, rest, layers, no_layers = (
            bytes_on_one_device(self._weights(decoder)) for decoder in decoders
        )
        projection = bytes_on_one_device(self.features.projection)
        elements = projection / self.decoder.dtype.itemsize
        return Counts(
            2.0 * bucket.tokens * elements,
            projection + whole - self._unused_bytes(bucket) - (rest + layers - no_layers),
        )

    def weight_bytes(self) -> int:
        """Return the bytes of the weights on one device."""
        return bytes_on_one_device((self._weights(self.decoder), self.features.projection))

    def _read_bytes(self, bucket: Bucket) -> float:
        # All weights, but of an embedding that is not the head some rows only.
        embedding = self._weights(self.decoder)["embedding"]
        unread = 0 if self.decoder.head is None else bytes_on_one_device(embedding)
        return self.weight_bytes() - unread - self._unused_bytes(bucket)

    def _unused_bytes(self, bucket: Bucket) -> float:
        """Return the expected bytes of the experts that no token of a step is sent to."""
        config = self.pair.target
        if not config.num_experts:
            return 0.0
        experts = nnx.filter_state(self._weights(self.decoder), _is_of_experts)
        unwanted: float = (1 - config.experts_per_token / config.num_experts) ** bucket.tokens
        return unwanted * bytes_on_one_device(experts)

    def _weights(self, decoder: Decoder) -> Any:
        assert self.layout.mesh is not None
        return state_shapes(nnx.state(decoder), decoder.config, Placement(self.layout.mesh))

    def _parts(self, decoder: Decoder, layout: CacheLayout, features: FeatureForm) -> Any:
        max_pages = -(-self.limits.max_context_tokens // self.limits.page_size)
        return nnx.graphdef(decoder), layout, max_pages, features, self.pair.max_block


class GreedyStep(TargetStep):
    """A step that cannot sample, for requests without rules."""

    def _run(
        self,
        weights: Any,
        projection: FeatureProjection | None,
        cache: PagedCache,
        inputs: StepInputs,
        limits: TokenLimits,
    ) -> tuple[StepOutputs, PagedCache]:
        greedy = inputs._replace(
            # It is made on the host, whose arrays nothing traced can index.
            sampling=jax.tree.map(jnp.asarray, pack_sampling((), inputs.draft_count.shape[0])),
            log_probs_wanted=jnp.zeros(1, jnp.bool_),
            rules_wanted=jnp.zeros(3, jnp.bool_),
        )
        # Not `super()`: a dataclass with slots is not the class that its methods saw.
        return TargetStep._run(self, weights, projection, cache, greedy, limits)


def draft_programs(
    drafter: DraftPrograms, config: DraftConfig, context_tokens: int
) -> Iterator[Program]:
    """Yield the drafter's programs, each sequence with so many positions in the cache."""
    layers = config.decoder
    sharding = drafter.sharding
    assert sharding is not None
    heads = layers.num_heads
    if sharding.query_axis is not None:
        heads //= sharding.mesh.shape[sharding.query_axis]
    caches = drafter.layer_caches()
    slots, _, capacity, _ = caches[0][0].shape
    position_bytes = bytes_on_one_device(caches) // (slots * capacity)
    # Entries after the anchor are drafted one by one, and each attends to the whole context.
    passes = 1 if isinstance(config, DFlashConfig) else config.block_size - 1
    queries = config.block_inputs if isinstance(config, DFlashConfig) else passes
    for rows in drafter.append_sizes:
        lower = partial(drafter.lower, "append", rows)
        yield Program("append", 0, rows, lower, traced_layers=layers.num_layers)
    for blocks in drafter.draft_sizes:
        yield Program(
            "draft",
            blocks,
            blocks * config.block_size,
            partial(drafter.lower, "draft", blocks),
            traced_layers=layers.num_layers * passes,
            by_hand=_attention(
                layers,
                heads=heads,
                queries=blocks * queries,
                context_tokens=context_tokens,
                context_bytes=passes * blocks * context_tokens * position_bytes,
            ),
        )


def _is_of_experts(_: tuple[Any, ...], weight: Any) -> bool:
    return EXPERTS in weight.get_metadata()["out_sharding"]


def _attention(
    config: DecoderConfig, *, heads: int, queries: int, context_tokens: int, context_bytes: int
) -> Counts:
    """Return the counts of attention: 4 operations per pair and dimension, and K/V bytes."""
    attending = (layer for layer in range(config.num_layers) if not config.is_recurrent(layer))
    width = sum(config.of_layer(layer).head_dim for layer in attending)
    flops = 4.0 * width * heads * queries * context_tokens
    return Counts(flops, float(context_bytes), 0.0)
