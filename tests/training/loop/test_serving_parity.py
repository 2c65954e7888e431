"""What training predicts is what the serving drafter drafts."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.drafter.builders import random_drafter
from tests.models.builders import run_dense
from tests.training.pair import LENGTH, PROMPT, Pair
from tests.training.serving import serving_method

from blockdraft_drafter.checkpoint import load_drafter, save_drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_drafter.method import DraftRow
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.loop.held_out import drafted_tokens
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.settings import DFlashSettings
from blockdraft_training.target import Frozen, HotVocabulary, freeze, frequencies

FEATURE_LAYERS = (1, 2)
BLOCK_SIZE = 6
ROWS = 2
RECIPE = DFlashRecipe(DFlashSettings(corpus=(Path("none"),), output=Path("none")))


@partial(jax.jit, static_argnums=0)
def predict(
    graph: nnx.GraphDef[DFlash],
    state: Any,
    frozen: Frozen,
    batch: SequenceBatch,
    anchors: jax.Array,
) -> jax.Array:
    return drafted_tokens(RECIPE, nnx.merge(graph, state), frozen, batch, anchors)


@pytest.mark.parametrize(
    ("from_anchor", "vocabulary", "rank"),
    [
        (False, None, 0),
        (True, 40, 3),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((True, None, 3), (True, 40, 0), (False, 40, 3))
        ),
    ],
    ids=str,
)
def test_predictions_in_training_are_drafts_in_serving(
    pair: Pair, tmp_path: Path, from_anchor: bool, vocabulary: int | None, rank: int
) -> None:
    target = pair.decoder.config
    config = replace(
        DFlashConfig.default_for(target, block_size=BLOCK_SIZE),
        target_layer_ids=FEATURE_LAYERS,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=9,
        sample_from_anchor=from_anchor,
        draft_vocab_size=vocabulary,
        markov_rank=rank,
    )
    rows = pair.rows[:ROWS]
    counts = frequencies([row.response for row in rows], target.vocab_size)
    hot = HotVocabulary.of(counts, vocabulary or target.vocab_size)
    save_drafter(
        random_drafter(config).model,
        tmp_path,
        None if vocabulary is None else np.asarray(hot.ids),
    )

    token_ids = np.array([row.token_ids for row in rows], np.int32)
    _, output = run_dense(pair.decoder, token_ids, FEATURE_LAYERS)
    features = np.asarray(output.captured.astype(jnp.bfloat16)).reshape(ROWS, LENGTH, -1)
    no_teacher = np.zeros((ROWS, LENGTH, 0))
    starts, ends = np.full(ROWS, PROMPT, np.int32), np.full(ROWS, LENGTH, np.int32)
    batch = SequenceBatch(
        token_ids, starts, ends, features, no_teacher.astype(np.int32), no_teacher
    )
    model = load_drafter(DFLASH, tmp_path, pair.checkpoint, dtype=jnp.float32).model
    frozen = freeze(pair.decoder, hot, online=False)
    graph, state = nnx.split(model)

    method = serving_method(pair.target, tmp_path, longest=LENGTH, rows=PROMPT)
    drafts = set()
    for row in range(ROWS):
        sent = 0
        # Every anchor of the first row; elsewhere whatever verification might have accepted.
        steps = np.random.default_rng(row).integers(1, 8 if row else 2, LENGTH)
        for anchor in np.unique(np.minimum(PROMPT - 1 + np.cumsum(steps), LENGTH - 1)).tolist():
            new = features[row, sent:anchor]
            (draft,) = method.step(
                [DraftRow(row, sent, new, int(token_ids[row, anchor]), BLOCK_SIZE - 1)]
            )
            # Each token is predicted after those before it, so they must be the drafted ones.
            inside = min(BLOCK_SIZE - 1, LENGTH - 1 - anchor)
            said = token_ids.copy()
            said[row, anchor + 1 : anchor + 1 + inside] = draft[:inside]
            anchors = jnp.full((ROWS, 1), anchor)
            predicted = predict(graph, state, frozen, replace(batch, token_ids=said), anchors)
            wanted = predicted[row, 0, : inside + 1].tolist()
            assert list(draft)[: inside + 1] == wanted
            drafts.add(draft)
            sent = anchor
    assert len(drafts) > 20, "the drafts should depend on the context"
