"""One step of the target on the device: forward pass, choices, acceptance, features."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.device.accept import (
    LogProbs,
    SamplingArrays,
    choose_tokens,
    count_accepted,
    log_probabilities,
)
from blockdraft_verifier.device.attention.paged import PagedAttend
from blockdraft_verifier.device.attention.portable import RaggedBatch
from blockdraft_verifier.device.cache import LayerCaches
from blockdraft_verifier.device.cache_layout import CacheLayout


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
            the others.
    """

    accepted: Int[Array, " rows"]
    bonus: Int[Array, " rows"]
    log_probs: LogProbs
    features: Float[Array, "tokens feature_width"]


def run_step(
    decoder: Decoder,
    caches: LayerCaches,
    inputs: StepInputs,
    *,
    layout: CacheLayout,
    capture: tuple[int, ...],
    max_drafts: int,
    feature_dtype: DTypeLike,
) -> tuple[StepOutputs, LayerCaches]:
    """Run the target over a ragged batch and verify its proposals.

    Args:
        decoder: The target.
        caches: K/V of the layers; donated by the caller.
        inputs: The batch.
        layout: Of the caches.
        capture: Layers whose outputs make a feature.
        max_drafts: Most drafted tokens of any row.
        feature_dtype: Element type of the features.

    Returns:
        The outputs and the updated caches.
    """
    token_count = inputs.token_ids.shape[0]
    attend = PagedAttend(inputs.batch, token_count, layout)
    output = decoder(inputs.token_ids, inputs.positions, caches, attend, capture)
    logits = decoder.logits(output.hidden[inputs.choice_token])

    choice_position = inputs.positions[inputs.choice_token] + 1
    choices = choose_tokens(logits, choice_position, inputs.choice_row, inputs.sampling)
    following = inputs.token_ids[jnp.minimum(inputs.choice_token + 1, token_count - 1)]
    accepted, bonus = count_accepted(
        choices, following, inputs.first_choice, inputs.draft_count, max_drafts
    )
    log_probs = log_probabilities(logits, choices, inputs.log_probs_wanted[0])
    order = final_positions_first(inputs.batch, inputs.draft_count, accepted, token_count)
    features = output.captured[order].astype(feature_dtype)
    return StepOutputs(accepted, bonus, log_probs, features), output.caches


def final_positions_first(
    batch: RaggedBatch,
    draft_count: Int[Array, " rows"],
    accepted: Int[Array, " rows"],
    token_count: int,
) -> Int[Array, " tokens"]:
    """Return flat token indices with rejected drafts and padding moved to the end.

    Features of rejected tokens must never leave the verifier.
    """
    token = jnp.arange(token_count, dtype=jnp.int32)
    row = jnp.searchsorted(batch.row_starts[1:], token, side="right")
    row = jnp.minimum(row, draft_count.shape[0] - 1).astype(jnp.int32)
    ends = batch.row_starts[1:] - draft_count + accepted
    final = (token < ends[row]) & (token < batch.row_starts[-1])
    return jnp.argsort(~final, stable=True)
