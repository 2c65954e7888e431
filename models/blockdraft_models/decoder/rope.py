"""Rotary position embedding (arXiv 2104.09864)."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.rope_scaling import (
    AnyRopeScaling,
    LinearScaling,
    LongRopeScaling,
    ProportionalScaling,
    RopeScaling,
    YarnScaling,
)

Frequencies = Float[np.ndarray, " half"]


class Rotary(NamedTuple):
    """Cosines and sines of every token's rotations; a pytree."""

    cos: Array  # Float[Array, "tokens half"]
    sin: Array  # Float[Array, "tokens half"]

    def where(self, rotated: Bool[Array, ""] | bool) -> "Rotary":
        """Return the tables that rotate if so asked, and else leave heads as they are."""
        return Rotary(jnp.where(rotated, self.cos, 1.0), jnp.where(rotated, self.sin, 0.0))


def base_frequencies(width: int, theta: float) -> Frequencies:
    """Return `theta ** (-2i / width)`, radians per token, in float64."""
    return theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def divisors(scaling: AnyRopeScaling, frequencies: Frequencies, theta: float) -> Frequencies:
    """Return the divisor of each frequency of base `theta`, in float64."""
    if isinstance(scaling, LinearScaling):
        return np.full_like(frequencies, scaling.factor)
    if isinstance(scaling, ProportionalScaling):
        return np.where(np.arange(len(frequencies)) < scaling.rotated, scaling.factor, math.inf)
    if isinstance(scaling, RopeScaling):
        wavelengths = 2 * math.pi / frequencies
        turns = scaling.original_max_position_embeddings / wavelengths
        smooth = (turns - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        share = np.clip(smooth, 0.0, 1.0)
        return np.asarray(1.0 / (share + (1.0 - share) / scaling.factor))
    if isinstance(scaling, YarnScaling):
        ramp = _yarn_ramp(scaling, len(frequencies), theta)
        return np.asarray(1.0 / (ramp / scaling.factor + 1.0 - ramp))
    return np.asarray(scaling.short_factors)


def _yarn_ramp(scaling: YarnScaling, half: int, theta: float) -> Frequencies:
    """Return a ramp over frequencies, from 0 at `beta_fast` turns to 1 at `beta_slow`."""

    def dimension(turns: float) -> float:
        wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return half * math.log(wavelength) / math.log(theta)

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    return np.asarray(np.clip((np.arange(half) - low) / max(high - low, 0.001), 0.0, 1.0))


def rotary_tables(
    config: DecoderConfig, positions: Int[Array, " tokens"], *, local: bool = False
) -> Rotary:
    """Return every token's rotations for all layers, or for those with a window (`local`).

    In float32: bfloat16 would rotate neighbouring positions beyond a few hundred by equal angles.
    """
    width = config.rotary_dim or config.head_dim
    theta, scaling = config.rope_theta, config.rope_scaling
    if local and config.local_rope_theta is not None:
        theta, scaling = config.local_rope_theta, None
    frequencies, length = base_frequencies(width, theta), 1.0
    if scaling is not None:
        frequencies = frequencies / divisors(scaling, frequencies, theta)
        if isinstance(scaling, YarnScaling | LongRopeScaling):
            length = scaling.attention_factor
    inverse = jnp.asarray(frequencies.astype(np.float32))
    angles = positions.astype(jnp.float32)[:, None] * inverse[None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return Rotary(cos, sin) if length == 1.0 else Rotary(cos * length, sin * length)


def rotate(
    x: Float[Array, "tokens heads head_dim"],
    cos: Float[Array, "tokens half"],
    sin: Float[Array, "tokens half"],
) -> Float[Array, "tokens heads head_dim"]:
    """Rotate dimension i against dimension i + half of every head, in float32.

    Dimensions from twice `half` on stay as they are.
    """
    width = 2 * cos.shape[1]
    if width < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., :width], cos, sin), x[..., width:]], axis=-1)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
