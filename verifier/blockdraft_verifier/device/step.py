"""One step of the target: forward pass, choices, acceptance, features; and how it is compiled."""

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Int32

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import first_greatest
from blockdraft_models.decoder.sharding import Place, in_order
from blockdraft_models.platform import lowering_on
from blockdraft_models.words import from_words, to_words
from blockdraft_verifier.device.accept import (
    LogProbs,
    choose_tokens,
    count_accepted,
    log_probabilities,
)
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import (
    FEATURE_DTYPE,
    CacheLayout,
    PagedCache,
    allocate_cache,
    cache_places,
)
from blockdraft_verifier.device.denoising import Denoised, canvas_inputs, denoise
from blockdraft_verifier.device.feature_form import FeatureForm, cut, final_positions_first
from blockdraft_verifier.device.logits_processing import bias_logits, mask_logits, process_logits
from blockdraft_verifier.device.packing import StepInputs, pack
from blockdraft_verifier.device.paged_attention import PagedAttend
from blockdraft_verifier.device.token_limits import TokenLimits, no_limits

_TPU_OPTIONS = {
    # Else what is rounded would depend on what is fused, and that on the bucket.
    "xla_allow_excess_precision": False,
}


class StepOutputs(NamedTuple):
    """Outputs of a step to the host.

    Of each row the drafted tokens accepted, and `bonus`, the target's own next token; of each
    choice the token and its log probabilities. Features of the positions that became final come
    first, row after row without gaps, then the others; cut into pieces, as the host reads only
    those it needs.
    """

    accepted: Int[Array, " rows"]
    bonus: Int[Array, " rows"]
    choices: Int[Array, " choices"]
    log_probs: LogProbs
    features: tuple[Float[Array, "piece feature_width"], ...]
    denoised: Denoised | None = None  # of a target that denoises


def _choices(
    logits: Float[Array, "choices vocab"],
    inputs: StepInputs,
    limits: TokenLimits,
    page_tokens: Int[Array, "pages page_size"],
    max_drafts: int,
) -> Int[Array, " choices"]:
    """Return the target's choices; the argmax alone if no request samples or has rules."""
    sampling = inputs.sampling
    biases, masks, penalties = inputs.rules_wanted

    def change() -> Float[Array, "choices vocab"]:
        # Few requests have rules, and to apply them all takes longer than to choose.
        changed: Array = jax.lax.cond(
            biases | penalties,
            lambda: process_logits(logits, inputs, limits, page_tokens, max_drafts),
            lambda: mask_logits(logits, limits),
        )
        return changed

    def choose() -> Int[Array, " choices"]:
        changed = jax.lax.cond(biases | masks | penalties, change, lambda: logits)
        position = inputs.positions[inputs.choice_token] + 1
        return choose_tokens(changed, position, inputs.choice_row, sampling)

    has_options = jnp.any(sampling.temperature > 0.0) | biases | masks | penalties
    choices: Int[Array, " choices"] = jax.lax.cond(
        has_options, choose, lambda: first_greatest(logits)
    )
    return choices


@dataclass(frozen=True, slots=True)
class TargetStep:
    """The step of a target as it is compiled, from shapes alone: no device need be there.

    `graph` is the target without its weights, `max_pages` the most of a sequence, `max_block` the
    most tokens of a decoding row, the anchor included.
    """

    graph: nnx.GraphDef[Decoder]
    layout: CacheLayout
    max_pages: int
    features: FeatureForm
    max_block: int

    def described(self, weights: Any, bucket: Bucket) -> tuple[Any, ...]:
        """Return step, weights and bucket, with arrays as shapes: all that it is compiled from."""
        projection = jax.tree.map(_described, self.features.projection)
        features = replace(self.features, projection=projection, fingerprint="")
        step = replace(self, features=features)
        return step, jax.tree.map(_described, weights), bucket

    def lower(self, weights: Any, bucket: Bucket) -> jax.stages.Lowered:
        """Return the step for one bucket, ready to be compiled.

        It takes the leaves of the weights, the features' projection, the cache, the words of
        `StepInputs`, and `TokenLimits`, and returns `StepOutputs` and the cache, which it takes
        over. To flatten the weights at each step would take longer than anything else on the host.
        """
        layout, decoder = self.layout, nnx.merge(self.graph, weights)
        inputs = pack(
            (),
            bucket,
            page_size=layout.page_size,
            num_pages=layout.num_pages,
            max_pages=self.max_pages,
            states=layout.states,
            has_adapters=bool(decoder.adapter_ranks),
            has_noise=layout.signals is not None,
        )
        limits = no_limits(bucket, decoder.config.vocab_size)
        small = to_words(inputs), limits
        cache = jax.eval_shape(functools.partial(allocate_cache, layout))
        leaves, tree = jax.tree.flatten(weights)
        described = (
            list(map(_described, leaves)),
            jax.tree.map(_described, self.features.projection),
            jax.tree.map(_placed, cache, cache_places(layout)),
            *jax.tree.map(lambda array: _placed(array, layout.replicated), small),
        )
        # Everything the host reads is whole on every device; the cache stays where it is.
        places = None if layout.mesh is None else (layout.replicated, cache_places(layout))

        def run(
            leaves: list[jax.Array],
            projection: FeatureProjection | None,
            cache: PagedCache,
            words: Int32[Array, " words"],
            limits: TokenLimits,
        ) -> tuple[StepOutputs, PagedCache]:
            state = jax.tree.unflatten(tree, leaves)
            return self._run(state, projection, cache, from_words(words, inputs), limits)

        on_tpu = layout.mesh is not None and layout.mesh.devices.flat[0].platform == "tpu"
        options = _TPU_OPTIONS if on_tpu else {}
        step = jax.jit(run, donate_argnums=(2,), out_shardings=places, compiler_options=options)
        with lowering_on(layout.mesh):
            return step.lower(*described)

    def _run(
        self,
        weights: Any,
        projection: FeatureProjection | None,
        cache: PagedCache,
        inputs: StepInputs,
        limits: TokenLimits,
    ) -> tuple[StepOutputs, PagedCache]:
        """Run the target over a ragged batch and verify its drafts; return the cache as well."""
        decoder, token_count = nnx.merge(self.graph, weights), inputs.token_ids.shape[0]
        attend = PagedAttend(inputs.batch, self.layout, inputs.state_slots)
        caches = [*cache.layers, *cache.states]
        signals, canvas = cache.signals, None
        if signals is not None:
            canvas, slot, offset = canvas_inputs(inputs, signals)
        output = decoder(
            inputs.token_ids,
            inputs.positions,
            caches,
            attend,
            self.features.layer_ids,
            inputs.adapters,
            canvas,
        )
        logits = decoder.logits(output.hidden[inputs.choice_token])

        tokens = cache.tokens.reshape(-1).at[inputs.batch.slots].set(inputs.token_ids, mode="drop")
        count = len(cache.layers)
        layers, states = output.caches[:count], output.caches[count:]
        cache = PagedCache(layers, tokens.reshape(cache.tokens.shape), states, signals)
        max_drafts = max(1, self.max_block - 1)
        denoised = None
        if decoder.config.diffusion is None:
            choices = _choices(logits, inputs, limits, cache.tokens, max_drafts)
        else:
            biased = jax.lax.cond(
                inputs.rules_wanted[0], lambda: bias_logits(logits, inputs, limits), lambda: logits
            )
            choices, denoised = denoise(decoder, biased, inputs)
            if denoised.signal is not None and signals is not None:
                place = slot[inputs.choice_token], offset[inputs.choice_token]
                signals = signals.at[place].set(denoised.signal, mode="drop")
                cache = cache._replace(signals=signals)
                denoised = denoised._replace(signal=None)
        following = inputs.token_ids[jnp.minimum(inputs.choice_token + 1, token_count - 1)]
        accepted, bonus = count_accepted(
            choices, following, inputs.first_choice, inputs.draft_count, max_drafts
        )
        reported = jnp.where(inputs.scored_token < 0, choices, inputs.scored_token)
        log_probs = log_probabilities(logits, reported, inputs.log_probs_wanted[0])
        order = final_positions_first(inputs.batch, inputs.draft_count, accepted, token_count)
        final = output.captured[order].astype(FEATURE_DTYPE)
        if projection is not None:
            # Rounded before and after: what the drafter would have computed from raw features.
            final = projection(final).astype(FEATURE_DTYPE)
        pieces = cut(final, first=inputs.first_choice.shape[0])
        return StepOutputs(accepted, bonus, choices, log_probs, pieces, denoised), cache


def _described(array: Any) -> jax.ShapeDtypeStruct:
    on_mesh = isinstance(array.sharding, jax.sharding.NamedSharding)
    return _placed(array, in_order(array.sharding, array.shape) if on_mesh else None)


def _placed(array: Any, place: Place | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)
