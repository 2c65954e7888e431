"""The programs of a step of learning, traced from shapes alone."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.drafter.builders import drafter_config

from blockdraft_drafter.dflash.model import DFlash
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.online.candidate import Candidate
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.target import Frozen, HotVocabulary


def products(jaxpr: Any) -> list[tuple[Any, ...]]:
    """Return the element types of all products, those of inner programs included."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(tuple(value.aval.dtype for value in equation.invars))
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found += products(inner)
    return found


@pytest.mark.parametrize("projected", [False, True], ids=["raw", "projected"])
def test_products_are_of_the_type_of_activations(projected: bool) -> None:
    config, rows, length = drafter_config(), 2, 64
    hidden, vocab = config.decoder.hidden_size, config.decoder.vocab_size
    matrix = jnp.zeros((vocab, hidden), jnp.bfloat16)
    frozen = Frozen(matrix, matrix, HotVocabulary.with_ids(np.arange(vocab), vocab))
    candidate = Candidate(
        DFlashRecipe(LearnSettings().as_run(Path("unused"))),
        DFlash(config, rngs=nnx.Rngs(0)),
        frozen,
        projected=projected,
        learning_rate=1e-3,
        warmup_steps=1,
        dtype=jnp.dtype(jnp.bfloat16),
    )
    width = hidden if projected else config.feature_width
    batch = SequenceBatch(
        jnp.zeros((rows, length), jnp.int32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, length, width), jnp.bfloat16),
        jnp.zeros((rows, length, 0), jnp.int32),
        jnp.zeros((rows, length, 0), jnp.float16),
        projected,
    )
    params = candidate.state.params
    # What went through the projection already teaches it nothing.
    assert ("fc" in params) == ("hidden_norm" in params) == (not projected)
    traced = candidate.make_step.trace(candidate.state, frozen, batch)
    found = products(traced.jaxpr)
    weights = [types for types in found if jnp.dtype(jnp.float32) not in types]
    # With float32 weights none would be; gradients of scores are the ones that are float32.
    assert len(weights) > 0.8 * len(found) > 0
