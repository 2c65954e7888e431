"""The parts of a step that are of canvases alone: inputs of the target, and its choices."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.products import VECTOR, log_share_sums, share_sums
from blockdraft_models.decoder.sampling import (
    SamplingArrays,
    filter_logits,
    first_greatest,
    gumbel_noise,
)
from blockdraft_models.decoder.self_conditioning import CanvasInputs
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
    # Of a first step it is that of another sequence, which may be no number.
    signal = jnp.where(rows.follows[row][:, None], read, 0)
    return CanvasInputs(joint, signal), slot, offset


class _Part(NamedTuple):
    """As many choices as a canvas has."""

    logits: Float[Array, "part vocab"]
    position: Int[Array, " part"]
    options: SamplingArrays
    temperature: Float[Array, " part"]


def denoise(
    decoder: Decoder, logits: Float[Array, "choices vocab"], inputs: StepInputs
) -> tuple[Int[Array, " choices"], Denoised]:
    """Return the choice at each position, and numbers of its distribution.

    At temperature 0 the choice is the likeliest token. A mask is never chosen. Parts of one shape
    are computed one after another: what XLA fuses depends on shapes, and bits on what it fuses.
    """
    diffusion, row, count = decoder.config.diffusion, inputs.choice_row, logits.shape[0]
    assert diffusion is not None
    temperature = jnp.ones(count)
    if inputs.canvases is not None:
        temperature = inputs.canvases.temperature[row]
    options = SamplingArrays(*(option[row] for option in inputs.sampling))
    whole = _Part(logits, inputs.positions[inputs.choice_token] + 1, options, temperature)
    size = diffusion.canvas_tokens

    def in_parts(array: Array) -> Array:
        padding = ((0, -count % size), *((0, 0),) * (array.ndim - 1))
        filled = jnp.pad(array, padding, constant_values=np.ones((), array.dtype))
        return filled.reshape(-1, size, *array.shape[1:])

    parts = jax.lax.map(partial(_denoise, decoder), jax.tree.map(in_parts, whole))
    merged = jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:])[:count], parts)
    choices, denoised = merged
    return choices, denoised


def _denoise(decoder: Decoder, part: _Part) -> tuple[Int[Array, " part"], Denoised]:
    diffusion, logits = decoder.config.diffusion, part.logits
    # Rows of whole vectors: `exp` of a single number rounds otherwise on CPU.
    filler = -logits.shape[1] % VECTOR
    logits = jnp.pad(logits, ((0, 0), (0, filler)), constant_values=-jnp.inf)
    if isinstance(diffusion, MaskDiffusion):
        logits = logits.at[:, diffusion.mask_token_id].set(-jnp.inf)
    else:
        logits = logits / part.temperature[:, None]
    centered = logits - logits.max(axis=-1, keepdims=True)
    warm = (part.options.temperature > 0.0)[:, None]
    scaled = centered / jnp.where(warm, part.options.temperature[:, None], 1.0)
    left = jnp.where(warm, filter_logits(scaled, part.options), centered)
    noise = gumbel_noise(part.options.seed, part.position, jnp.arange(logits.shape[1]))
    choices = first_greatest(jnp.where(warm, left + noise, left))
    if isinstance(diffusion, MaskDiffusion):
        weights = jnp.exp(left)
        chosen = jnp.take_along_axis(weights, choices[:, None], axis=1)[:, 0]
        return choices, Denoised(chosen / share_sums(weights))
    weights = jnp.exp(centered)
    # Of exponents below -100 the weight is 0, and so is its part of the entropy.
    surprise = share_sums(weights * -jnp.maximum(centered, -100.0))
    entropies = log_share_sums(weights) + surprise / share_sums(weights)
    table = decoder.embedding.table[...]
    rounded = logits.astype(table.dtype).astype(jnp.float32)
    weights = jnp.exp(rounded - rounded.max(axis=-1, keepdims=True))
    shares = (weights / share_sums(weights)[:, None])[:, : table.shape[0]].astype(table.dtype)
    signal = jnp.dot(shares, table, preferred_element_type=jnp.float32).astype(table.dtype)
    signal = signal * jnp.asarray(decoder.config.embedding_scale, signal.dtype)
    return choices, Denoised(entropies, first_greatest(centered), signal)
