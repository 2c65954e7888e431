"""One step of the target on the device: forward pass, choices, acceptance, features."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import SamplingArrays
from blockdraft_verifier.device.accept import (
    LogProbs,
    choose_tokens,
    count_accepted,
    log_probabilities,
)
from blockdraft_verifier.device.attention.paged import PagedAttend
from blockdraft_verifier.device.attention.portable import RaggedBatch
from blockdraft_verifier.device.cache import LayerCaches
from blockdraft_verifier.device.cache_layout import CacheLayout
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.final_features import cut, final_positions_first


class StepInputs(NamedTuple):
    """Everything a step needs besides weights and cache.

    Attributes:
        token_ids: Tokens of all rows one after another, then padding.
        positions: Position of each token in its sequence.
        batch: Where the tokens belong.
        choice_token: Flat index of each token after which the target's choice is wanted.
        choice_row: The row of each choice.
        first_choice: Index of each row's first choice.
        draft_count: Drafted tokens at the end of each row.
        sampling: Sampling options of each row.
        log_probs_wanted: Whether any row wants log probabilities.
    """

    token_ids: Int[Array, " tokens"]
    positions: Int[Array, " tokens"]
    batch: RaggedBatch
    choice_token: Int[Array, " choices"]
    choice_row: Int[Array, " choices"]
    first_choice: Int[Array, " rows"]
    draft_count: Int[Array, " rows"]
    sampling: SamplingArrays
    log_probs_wanted: Bool[Array, "1"]


class StepOutputs(NamedTuple):
    """What a step tells the host.

    Attributes:
        accepted: Drafted tokens accepted, per row.
        bonus: The target's own next token, per row.
        log_probs: Log probabilities of every choice.
        features: Features of the positions that became final, row after row without gaps, then
            the others; cut into pieces, since the host reads only those it needs.
    """

    accepted: Int[Array, " rows"]
    bonus: Int[Array, " rows"]
    log_probs: LogProbs
    features: tuple[Float[Array, "piece feature_width"], ...]


def run_step(
    decoder: Decoder,
    caches: LayerCaches,
    inputs: StepInputs,
    *,
    layout: CacheLayout,
    features: FeatureForm,
    max_drafts: int,
    feature_dtype: DTypeLike,
) -> tuple[StepOutputs, LayerCaches]:
    """Run the target over a ragged batch and verify its proposals.

    Args:
        decoder: The target.
        caches: K/V of the layers; donated by the caller.
        inputs: The batch.
        layout: Of the caches.
        features: What to give of every final position.
        max_drafts: Most drafted tokens of any row.
        feature_dtype: Element type of the features.

    Returns:
        The outputs and the updated caches.
    """
    token_count = inputs.token_ids.shape[0]
    attend = PagedAttend(inputs.batch, token_count, layout)
    output = decoder(inputs.token_ids, inputs.positions, caches, attend, features.layer_ids)
    logits = decoder.logits(output.hidden[inputs.choice_token])

    choice_position = inputs.positions[inputs.choice_token] + 1
    choices = choose_tokens(logits, choice_position, inputs.choice_row, inputs.sampling)
    following = inputs.token_ids[jnp.minimum(inputs.choice_token + 1, token_count - 1)]
    accepted, bonus = count_accepted(
        choices, following, inputs.first_choice, inputs.draft_count, max_drafts
    )
    log_probs = log_probabilities(logits, choices, inputs.log_probs_wanted[0])
    order = final_positions_first(inputs.batch, inputs.draft_count, accepted, token_count)
    final = output.captured[order].astype(feature_dtype)
    if features.projection is not None:
        # Rounded before and after: what the drafter would have computed from raw features.
        final = features.projection(final).astype(feature_dtype)
    pieces = cut(final, first=inputs.first_choice.shape[0])
    return StepOutputs(accepted, bonus, log_probs, pieces), output.caches
