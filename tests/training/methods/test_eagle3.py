"""EAGLE-3 drafts in training against the float64 reference, and against what serves."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.drafter.builders import (
    CHAIN_SIZE,
    VOCAB,
    eagle3_drafter,
    make_method,
    target_parts,
)
from tests.drafter.reference import reference_chain
from tests.training.drafting import random_batch

from blockdraft_drafter.checkpoint import published_arrays
from blockdraft_drafter.method import DraftRow
from blockdraft_training.methods.eagle3 import draft_chains

STEPS = CHAIN_SIZE - 1


@partial(jax.jit, static_argnums=0)
def chains(graph: Any, state: Any, *inputs: Any) -> jax.Array:
    return draft_chains(nnx.merge(graph, state), *inputs)


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_every_step_equals_serving_and_reference(norm_before_residual: bool) -> None:
    """Rows whose completions are what the drafter says, then left it: all that a draft can meet."""
    rng = np.random.default_rng(0)
    drafter = eagle3_drafter(norm_before_residual=norm_before_residual)
    model, target = drafter.model, target_parts()
    embedding = np.asarray(target.embedding)
    arrays = published_arrays(model)
    width = model.config.feature_width
    batch = random_batch(rng, 2, 16, width=width, vocab_size=VOCAB)
    anchors = np.array([[1, 5, 9], [3, 7, 11]])
    # Where a draft was right, its tokens are the row's: make some of the rows so.
    for row, row_anchors in enumerate(anchors.tolist()):
        anchor = row_anchors[-1]
        tokens = batch.token_ids[row, : anchor + 1].tolist()
        chosen, _ = reference_chain(
            arrays,
            model.config,
            embedding,
            embedding,
            range(VOCAB),
            batch.features[row, :anchor],
            tokens,
        )
        batch.token_ids[row, anchor + 1 : anchor + STEPS] = chosen[: STEPS - 1]
    hidden = chains(*nnx.split(model), target.embedding, batch, jnp.asarray(anchors, jnp.int32))
    drafted = np.asarray(target.logits(hidden.reshape(-1, hidden.shape[-1])))
    best = drafted.argmax(-1).reshape(2, 3, STEPS)
    method = make_method(drafter, target_parts(), max_feature_rows=16)
    for row, row_anchors in enumerate(anchors.tolist()):
        for place, anchor in enumerate(row_anchors):
            tokens = batch.token_ids[row].tolist()
            chosen, logits = reference_chain(
                arrays,
                model.config,
                embedding,
                embedding,
                range(VOCAB),
                batch.features[row, :anchor],
                tokens[: anchor + 1],
            )
            known = DraftRow(
                0, 0, batch.features[row, :anchor], tokens[anchor], STEPS, tuple(tokens[:anchor])
            )
            [draft] = method.step([known])
            assert list(draft) == chosen
            # Equal up to the first miss, and at it; beyond, training reads the row's own tokens.
            right = [a == b for a, b in zip(chosen, tokens[anchor + 1 :], strict=False)]
            same = 1 + (right.index(False) if False in right else STEPS - 1)
            assert best[row, place, :same].tolist() == chosen[:same]
            first = drafted.reshape(2, 3, STEPS, -1)[row, place, :same]
            np.testing.assert_allclose(first, np.stack(logits)[:same], rtol=1e-3, atol=1e-4)
            if place == 2:
                assert same == STEPS
