"""Which rule moves which weight, and how far."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from blockdraft_training.loop.step import cosine, make_optimizer
from blockdraft_training.settings import Optimizer, TrainSettings

RATE = 1e-2
SETTINGS = TrainSettings(
    (Path("corpus"),),
    Path("run"),
    steps=25,
    learning_rate=RATE,
    weight_decay=0.0,
    optimizer="muon",
)


def weights(rng: np.random.Generator) -> dict[str, Any]:
    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {"fc": normal(24, 16), "norm": normal(16), "markov_head": {"table": normal(30, 4)}}


def second_update(settings: TrainSettings, seed: int) -> dict[str, Any]:
    """Return the update at the peak of the rate, which the second step has."""
    rng = np.random.default_rng(seed)
    params, gradients = weights(rng), weights(rng)
    optimizer = make_optimizer(settings, cosine(settings))
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    with jax.numpy_dtype_promotion("standard"):
        # No warm-up is shorter than a step: the second has the peak.
        _, state = update(gradients, state, params)
        updates, _ = update(gradients, state, params)
    assert isinstance(updates, dict)
    return updates


@pytest.mark.parametrize("seed", range(3))
def test_muon_orthogonalizes_matrices_to_the_size_of_other_updates(seed: int) -> None:
    updates = second_update(SETTINGS, seed)
    singular = np.linalg.svd(np.asarray(updates["fc"]), compute_uv=False)
    # Five iterations bring all singular values near one another, not onto one (Jordan, 2024).
    assert singular.max() / singular.min() < 2.0
    size = float(jnp.sqrt(jnp.mean(updates["fc"] ** 2)))
    assert size == pytest.approx(0.2 * RATE, rel=0.25)


def test_vectors_and_tables_are_moved_by_adamw() -> None:
    muon = second_update(SETTINGS, 0)
    adamw = second_update(replace(SETTINGS, optimizer="adamw"), 0)
    # Muon's AdamW looks ahead by Nesterov's rule: the same signs, a little further.
    near = partial(np.testing.assert_allclose, rtol=0.2, atol=1e-6)
    near(muon["norm"], adamw["norm"])
    near(muon["markov_head"]["table"], adamw["markov_head"]["table"])
    assert not np.allclose(muon["fc"], adamw["fc"], rtol=0.1)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_gradients_are_clipped_and_the_rate_rises_and_falls(name: Optimizer) -> None:
    settings = replace(SETTINGS, optimizer=name, steps=100)
    optimizer = make_optimizer(settings, cosine(settings))
    params = weights(np.random.default_rng(0))
    gradients = jax.tree.map(lambda weight: 1e6 * jnp.ones_like(weight), params)
    state, sizes = optimizer.init(params), []
    update = jax.jit(optimizer.update)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(100):
            updates, state = update(gradients, state, params)
            sizes.append(float(optax.tree.norm(updates)))
    assert sizes[0] == 0.0
    assert np.argmax(sizes) in range(3, 7)
    assert sizes[-1] < 0.05 * max(sizes)
