"""The parts of a step that are of canvases alone: inputs of the target, and its choices."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.products import log_share_sums, share_sums
from blockdraft_models.decoder.sampling import (
    SamplingArrays,
    filter_logits,
    first_greatest,
    gumbel_noise,
)
from blockdraft_models.decoder.self_conditioning import CanvasInputs, mean_embeddings
from blockdraft_models.diffusion import MaskDiffusion
from blockdraft_verifier.device.packing import StepInputs


class Denoised(NamedTuple):
    """The distributions of a canvas, besides the choices."""

    # Float[Array, " choices"], the probabilities of the choices; where canvases begin as noise, the
    # entropies of their distributions.
    scores: Array
    likeliest: Array | None = None  # Int[Array, " choices"], if there is noise
    # Float[Array, "choices hidden"], mean embeddings for the next step, if there is noise.
    signal: Array | None = None


def canvas_inputs(
    inputs: StepInputs, signals: Float[Array, "slots canvas hidden"]
) -> tuple[CanvasInputs, Int[Array, " tokens"], Int[Array, " tokens"]]:
    """Return the canvases of a step, and of each token the place of its signal: slot and offset.

    The slot is out of range for tokens of no canvas.
    """
    batch, rows = inputs.batch, inputs.canvases
    assert rows is not None
    assert batch.joint is not None
    token = jnp.arange(inputs.token_ids.shape[0], dtype=jnp.int32)
    row = jnp.searchsorted(batch.row_starts[1:], token, side="right").astype(jnp.int32)
    row = jnp.minimum(row, batch.joint.shape[0] - 1)
    joint = batch.joint[row] & (token < batch.row_starts[-1])
    offset = jnp.where(joint, token - batch.row_starts[row], 0)
    slot = jnp.where(joint, rows.slot[row], signals.shape[0])
    read = signals.at[slot, offset].get(mode="fill", fill_value=0)
    return CanvasInputs(joint, read * rows.follows[row][:, None].astype(read.dtype)), slot, offset


def denoise(
    decoder: Decoder, logits: Float[Array, "choices vocab"], inputs: StepInputs
) -> tuple[Int[Array, " choices"], Denoised]:
    """Return the choice at each position, and numbers of its distribution.

    At temperature 0 the choice is the likeliest token. A mask is never chosen.
    """
    diffusion, row = decoder.config.diffusion, inputs.choice_row
    options = SamplingArrays(*(option[row] for option in inputs.sampling))
    if isinstance(diffusion, MaskDiffusion):
        logits = logits.at[:, diffusion.mask_token_id].set(-jnp.inf)
    else:
        assert inputs.canvases is not None
        logits = logits / inputs.canvases.temperature[row][:, None]
    centered = logits - logits.max(axis=-1, keepdims=True)
    warm = (options.temperature > 0.0)[:, None]
    scaled = centered / jnp.where(warm, options.temperature[:, None], 1.0)
    left = jnp.where(warm, filter_logits(scaled, options), centered)
    position = inputs.positions[inputs.choice_token] + 1
    noise = gumbel_noise(options.seed, position, jnp.arange(logits.shape[-1]))
    choices = first_greatest(jnp.where(warm, left + noise, left))
    if isinstance(diffusion, MaskDiffusion):
        weights = jnp.exp(left)
        chosen = jnp.take_along_axis(weights, choices[:, None], axis=1)[:, 0]
        return choices, Denoised(chosen / share_sums(weights))
    weights = jnp.exp(centered)
    sums = share_sums(weights)
    # Of exponents below -100 the weight is 0, and so is its part of the entropy.
    surprise = share_sums(weights * -jnp.maximum(centered, -100.0))
    entropies = log_share_sums(weights) + surprise / sums
    table = decoder.embedding.table[...]
    rounded = logits.astype(table.dtype).astype(jnp.float32)
    weights = jnp.exp(rounded - rounded.max(axis=-1, keepdims=True))
    signal = mean_embeddings(weights / share_sums(weights)[:, None], table)
    signal = signal * jnp.asarray(decoder.config.embedding_scale, signal.dtype)
    return choices, Denoised(entropies, first_greatest(centered), signal)
