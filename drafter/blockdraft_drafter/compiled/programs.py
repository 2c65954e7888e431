"""The programs of a draft method, in few shapes, lowered from shapes alone.

A program that serves, and one that is only compiled for an absent TPU, have the same code.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.compiled import buffer
from blockdraft_drafter.compiled.buffer import HeadSharding
from blockdraft_drafter.compiled.packing import (
    KEPT_CHOICES,
    PackedBlocks,
    PackedFeatures,
    PackedRecycled,
)
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.sampling import (
    SamplingArrays,
    filter_logits,
    first_greatest,
    gumbel_noise,
    pack_sampling,
)
from blockdraft_models.decoder.sharding import Placement
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.platform import lowering_on
from blockdraft_models.weights.loading import EmbeddingAndHead
from blockdraft_models.words import from_words, word_count

ProgramKind = Literal["append", "draft"]

SHARPNESS = 1.3
"""Factor of the drafter's logits before Gumbel noise is added; measured."""
NOISY_ODDS = 1.5
"""A token drafted with Gumbel noise is as often right as its softmax to this power; measured."""


class Drafted(NamedTuple):
    """The drafts of a batch of blocks; a pytree."""

    token_ids: Array  # Int[Array, "blocks block_size-1"], the drafted tokens, as the target's ids
    counts: Array  # Int[Array, "blocks"], number of drafted tokens; later ones mean nothing


class DraftWeights(NamedTuple):
    """Everything a step reads besides the cache; a pytree of arrays or of their shapes."""

    model: Any  # the drafter's state
    target: EmbeddingAndHead  # embedding, and the head over the draft vocabulary
    draft_ids: Any  # Int[Array, "draft"], the draft vocabulary; None for all tokens


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of a method, as in `MethodSpec`, and whether features come projected."""

    max_sequences: int
    max_context_tokens: int
    max_feature_rows: int
    feature_dtype: np.dtype[Any]
    projected: bool


@dataclass(frozen=True, slots=True)
class DraftPrograms(ABC):
    """The programs of a drafter; a method defines their computations by pure functions.

    A draft over a batch of B blocks (B a power of two) is one program that also appends up to
    B * features_per_block features, all that verification can yield; an append-only program takes a
    power of two of features. That is one program per size of either, not one per pair.

    The draft KV cache is a pytree that only the method itself looks into.
    """

    graph: nnx.GraphDef[Any]  # the drafter without its weights
    decoder: DecoderConfig  # its draft layers
    block_size: int  # tokens per block, the anchor included
    feature_width: int  # elements of one feature that is not projected
    capacity: Capacity
    dtype: DTypeLike  # of the draft KV cache
    weights: DraftWeights  # shapes, types and places of the first argument of every program
    placement: Placement | None = None  # on a mesh; None for the default device
    # Whether the time of a draft grows with the number of tokens to draft.
    token_by_token: ClassVar[bool] = False

    @property
    def sharding(self) -> HeadSharding | None:
        """The division of the heads; None for one device."""
        return None if self.placement is None else HeadSharding.of(self.decoder, self.placement)

    def layer_caches(self) -> list[Any]:
        """Return shape, type and place of the keys and values of every draft layer."""
        return buffer.shapes(
            self.decoder,
            slots=self.capacity.max_sequences,
            capacity=self.capacity.max_context_tokens,
            dtype=self.dtype,
            sharding=self.sharding,
        )

    def hidden_states(
        self, projection: FeatureProjection, new: PackedFeatures
    ) -> Float[Array, "positions hidden"]:
        """Return projected features, in the drafter's element type."""
        features = jnp.asarray(new.features)
        if self.capacity.projected:
            return features.astype(projection.weight.dtype)
        return projection(features)

    @abstractmethod
    def cache(self) -> Any:
        """Return shape, type and place of the draft KV cache, all slots."""

    @abstractmethod
    def append(self, weights: DraftWeights, cache: Any, new: PackedFeatures) -> Any:
        """Return the cache with new features added."""

    @abstractmethod
    def append_and_draft(
        self, weights: DraftWeights, cache: Any, new: PackedFeatures, blocks: PackedBlocks
    ) -> tuple[Any, Drafted]:
        """Return the cache with new features added, and drafts that see them."""

    @property
    def features_per_block(self) -> int:
        """Features that a draft program appends for each of its blocks."""
        return next_power_of_two(self.block_size)

    @property
    def append_sizes(self) -> list[int]:
        """Numbers of features that append-only programs take, rising."""
        maximum = max(self.capacity.max_feature_rows, self.features_per_block)
        return _powers_of_two(self.features_per_block, maximum)

    @property
    def draft_sizes(self) -> list[int]:
        """The batch sizes of draft programs, rising."""
        return _powers_of_two(1, self.capacity.max_sequences)

    def lower(self, kind: ProgramKind, size: int) -> Lowered:
        """Trace the program that appends `size` features, or drafts `size` blocks.

        It takes weights, cache, features and the words of all else.
        """
        cache = self.cache()
        places = None
        if self.placement is not None:
            # Otherwise the next step would get the cache back in another place.
            places = jax.tree.map(lambda part: part.sharding, cache)
        count = size if kind == "append" else size * self.features_per_block
        width = self.decoder.hidden_size if self.capacity.projected else self.feature_width
        features = whole((count, width), self.capacity.feature_dtype, self.placement)
        small = _new_features(count), None if kind == "append" else _blocks(size)

        def run(weights: DraftWeights, cache: Any, features: Array, words: Array) -> Any:
            new, blocks = from_words(words, small)
            new = new._replace(features=features)
            if blocks is None:
                return self.append(weights, cache, new)
            return self.append_and_draft(weights, cache, new, blocks)

        if kind == "draft" and places is not None:
            # Drafts are small: every device has all of them.
            places = (places, _everywhere(self.placement))
        words = whole((word_count(small),), jnp.int32, self.placement)
        program = jax.jit(run, donate_argnums=1, out_shardings=places)
        with lowering_on(None if self.placement is None else self.placement.mesh):
            return program.lower(self.weights, cache, features, words)


def _new_features(count: int) -> PackedFeatures:
    numbers = jax.ShapeDtypeStruct((count,), jnp.int32)
    return PackedFeatures(None, numbers, numbers, numbers)


def _blocks(count: int) -> PackedBlocks:
    # Shapes where the arrays themselves are declared.
    numbers: Any = jax.ShapeDtypeStruct((count,), jnp.int32)
    shares: Any = jax.ShapeDtypeStruct((count,), jnp.float32)
    sampling = jax.tree.map(jax.typeof, pack_sampling((), count))
    choices = jax.ShapeDtypeStruct((count, KEPT_CHOICES), jnp.int32)
    recycled = PackedRecycled(choices, choices, choices)
    return PackedBlocks(numbers, numbers, numbers, numbers, shares, sampling, recycled)


def draft_tokens(
    logits: Float[Array, "choices draft"],
    positions: Int[Array, " choices"],
    sampling: SamplingArrays,
    draft_ids: Int[Array, " draft"] | None,
    sharpness: float = SHARPNESS,
) -> tuple[Int[Array, " choices"], Float[Array, " choices"]]:
    """Return the token to draft at each position, as `choose` does; `draft_ids` are the target's.

    Tokens are target ids. The second result is the log probability that the target chooses each.
    """

    def noise() -> Float[Array, "choices draft"]:
        ids = jnp.arange(logits.shape[-1]) if draft_ids is None else draft_ids
        return gumbel_noise(sampling.seed, positions, ids)

    index, log_chance = choose(logits, noise, sampling, sharpness)
    return (index if draft_ids is None else draft_ids[index]), log_chance


def choose(
    logits: Float[Array, "choices draft"],
    gumbel: Callable[[], Float[Array, "choices draft"]],
    sampling: SamplingArrays,
    sharpness: float = SHARPNESS,
) -> tuple[Int[Array, " choices"], Float[Array, " choices"]]:
    """Return the index of the token that the target will most likely choose, for each choice.

    The target takes its likeliest token, or samples: then it adds Gumbel noise to its logits, which
    follows from the request's seed and the position alone, and takes the token with the greatest
    sum (docs/adr/0003). With shared Gumbel noise, a drafter whose logits are like the target's
    finds the same token more often than if it drafted its likeliest (docs/adr/0027).

    The larger `sharpness`, the more often the likeliest token is drafted. The second result is the
    log probability that the target chooses the token. For greedy sequences it is that of the
    drafter, which is well calibrated. Where the noise of `gumbel` is added, the probability is the
    softmax of the noisy logits to the power `NOISY_ODDS`: noise makes wrong tokens stand out as
    much as right ones.
    """
    best, log_chance = first_greatest(logits), _log_of_greatest(_centered(logits))

    def sample() -> tuple[Int[Array, " choices"], Float[Array, " choices"]]:
        warm = sampling.temperature > 0.0
        # Centered here again: an array that both branches share is held beside the logits.
        scaled = _centered(logits) / jnp.where(warm, sampling.temperature, 1.0)[:, None]
        noise = gumbel()
        noisy = _centered(sharpness * filter_logits(scaled, sampling) + noise)
        return (
            jnp.where(warm, first_greatest(noisy), best),
            jnp.where(warm, NOISY_ODDS * _log_of_greatest(noisy), log_chance),
        )

    # A batch of greedy sequences does not pay for Gumbel noise and filters.
    chosen: tuple[Array, Array] = jax.lax.cond(
        jnp.any(sampling.temperature > 0.0), sample, lambda: (best, log_chance)
    )
    return chosen


def _centered(values: Float[Array, "rows width"]) -> Float[Array, "rows width"]:
    """Return each row minus its largest value."""
    return values - values.max(axis=-1, keepdims=True)


def _log_of_greatest(centered: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Return the log softmax of each row's largest value, which is 0."""
    return -jnp.log(jnp.exp(centered).sum(axis=-1))


def whole(
    shape: tuple[int, ...], dtype: DTypeLike, placement: Placement | None
) -> jax.ShapeDtypeStruct:
    """Return the shape of an array that lies whole on every device."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=_everywhere(placement))


def _everywhere(placement: Placement | None) -> NamedSharding | None:
    return None if placement is None else NamedSharding(placement.mesh, PartitionSpec())


def _powers_of_two(first: int, last: int) -> list[int]:
    """Return `first`, twice that, and so on, up to the first that is at least `last`."""
    powers = [first]
    while powers[-1] < last:
        powers.append(powers[-1] * 2)
    return powers
