"""How much faster this machine decodes in bfloat16 than in float32, by a short trial."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike

from blockdraft_models.decoder.products import ProductForm, project
from blockdraft_models.precision.forms import suitable_form

ROWS = 8
"""Rows of the trial: those of a block that is verified, or drafted."""

# The default target's layers, so many that their 106 MB of float32 exceed most caches.
_LAYERS, _HIDDEN, _INTERMEDIATE = 10, 576, 1536
_ROUNDS = 25

Trial = Callable[[], float]


def trial_forms() -> tuple[ProductForm, ProductForm]:
    """Return how the trial multiplies bfloat16: to the intermediate width, and back."""
    return suitable_form(_INTERMEDIATE, _HIDDEN), suitable_form(_HIDDEN, _INTERMEDIATE)


def bfloat16_speedup() -> float:
    """Return how many times as fast this machine computes in bfloat16 as in float32.

    The trial is the feed-forward half of decoder layers, of which products with weights are nearly
    everything: a product alone would be compiled to something else than between these.
    """
    return speedup(_trial(jnp.float32), _trial(jnp.bfloat16))


def speedup(base: Trial, other: Trial, rounds: int = _ROUNDS) -> float:
    """Return how many times as fast the other trial is.

    Each round times one right after the other, so that what else the machine does mostly meets
    both alike; the median leaves out the rounds in which it does not.

    Args:
        base: Runs what is compared with, and returns the seconds it took.
        other: The same for what is compared.
        rounds: How often both run.
    """
    return median(base() / other() for _ in range(rounds))


def _trial(dtype: DTypeLike) -> Trial:
    forms = trial_forms()
    # Zeros take as long as any other weights.
    wide, narrow = (_INTERMEDIATE, _HIDDEN), (_HIDDEN, _INTERMEDIATE)
    layers = [
        tuple(jnp.zeros(shape, dtype) for shape in ((_HIDDEN,), wide, wide, narrow))
        for _ in range(_LAYERS)
    ]

    def run() -> float:
        started = time.perf_counter()
        x = jnp.ones((ROWS, _HIDDEN), dtype)
        for layer in layers:
            x = _feed_forward(x, *layer, forms=forms)
        x.block_until_ready()
        return time.perf_counter() - started

    run()  # compiles
    return run


@partial(jax.jit, static_argnames="forms")
def _feed_forward(
    x: Array,
    scale: Array,
    gate: Array,
    up: Array,
    down: Array,
    forms: tuple[ProductForm, ProductForm],
) -> Array:
    widen, narrow = forms
    normed = x * scale[None, :]
    gated = jax.nn.silu(project(normed, gate, form=widen)) * project(normed, up, form=widen)
    return x + project(gated, down, form=narrow)
