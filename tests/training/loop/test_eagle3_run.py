"""Whole runs of EAGLE-3: it learns, what it learned is what serves, and the command trains it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.drafter.builders import eagle3_drafter
from tests.training.pair import LENGTH, Pair, reporter
from tests.training.serving import decoded, serving_method

from blockdraft_drafter.checkpoint import load_drafter, save_drafter
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_training.errors import TrainingError
from blockdraft_training.export import export_drafter
from blockdraft_training.loop.held_out import split_validation
from blockdraft_training.loop.run import train
from blockdraft_training.methods.eagle3 import Eagle3Recipe


def recipe(pair: Pair, output: Path, **changes: Any) -> Eagle3Recipe:
    return Eagle3Recipe(pair.eagle3(output, **changes))


@pytest.mark.slow
def test_a_drafter_learns_what_its_target_says(pair: Pair, tmp_path: Path) -> None:
    made = recipe(
        pair,
        tmp_path / "run",
        corpus=(pair.corpus,),
        block_size=6,
        steps=300,
        batch_size=16,
        blocks_per_sequence=8,
        learning_rate=1e-2,
        distillation=0.2,
        validation_rows=8,
        checkpoint_every=300,
        report_every=100,
    )
    trained = train(made, reporter())
    export_drafter(trained, made, tmp_path / "drafter", "blockdraft train eagle3")
    card = (tmp_path / "drafter/README.md").read_text()
    assert "# EAGLE-3 drafter for" in card

    _, features = pair.kept_features(tmp_path / "run", pair.rows)
    method = serving_method(pair.target, tmp_path / "drafter", longest=LENGTH, rows=16)
    assert method.spec.name == "eagle3"
    # Of five drafted tokens, most are right on what it was trained on.
    assert np.mean(decoded(method, pair.rows, features)) >= 4
    # Replaying the held-out completions all at once says what drafting them one by one says; in
    # float32, as trained: the export rounds.
    assert isinstance(trained.model, Eagle3)
    save_drafter(trained.model, tmp_path / "exact", trained.draft_ids)
    method = serving_method(pair.target, tmp_path / "exact", longest=LENGTH, rows=16)
    _, held_out = split_validation(pair.rows, 8)
    gained = decoded(method, [pair.rows[n] for n in held_out], [features[n] for n in held_out])
    assert trained.acceptance is not None
    assert trained.acceptance.acceptance_length == pytest.approx(np.mean(gained))
    assert np.mean(gained) > 1


def test_it_starts_from_the_targets_last_layer(pair: Pair, tmp_path: Path) -> None:
    made = recipe(pair, tmp_path)
    model = made.initial_model(pair.decoder, pair.checkpoint, None)
    last, hidden = pair.decoder.layers[-1], pair.decoder.config.hidden_size
    key, copied = model.attention.key_and_value[0], last.attention.key_and_value[0]
    np.testing.assert_array_equal(key.weight[:, hidden:], copied.weight[...])
    np.testing.assert_array_equal(model.mlp.down.weight[...], last.mlp.down.weight[...])
    np.testing.assert_array_equal(model.norm.scale[...], pair.decoder.norm.scale[...])
    with pytest.raises(TrainingError, match="target layer 99"):
        recipe(pair, tmp_path, feature_layers=(99,)).initial_model(
            pair.decoder, pair.checkpoint, None
        )
    other = eagle3_drafter().model.config
    wide = replace(other, decoder=replace(other.decoder, num_heads=8, head_dim=16))
    with pytest.raises(TrainingError, match="only layers of the target's shape"):
        made.from_target(wide, pair.decoder)
    newer = eagle3_drafter(norm_output=True)
    with pytest.raises(TrainingError, match=r"norms that cannot be trained"):
        made.from_drafter(newer.model.config, newer, None)


def test_a_run_starts_from_a_drafter(pair: Pair, tmp_path: Path) -> None:
    made = recipe(pair, tmp_path, init="random")
    made.save(made.initial_model(pair.decoder, pair.checkpoint, None), tmp_path / "drafter", None)
    loaded = load_drafter(
        EAGLE3, tmp_path / "drafter", pair.checkpoint, block_size=2, dtype=np.dtype(np.float32)
    )
    assert loaded.model.config.block_size == 4
    again = recipe(pair, tmp_path, init=str(tmp_path / "drafter"))
    model = again.initial_model(pair.decoder, pair.checkpoint, None)
    np.testing.assert_array_equal(model.fc.weight[...], loaded.model.fc.weight[...])


def test_a_target_too_shallow_for_the_published_points_is_an_error(
    pair: Pair, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="no three capture points"):
        train(recipe(pair, tmp_path / "run", feature_layers=()), reporter())
