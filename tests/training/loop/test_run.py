"""Whole runs: a drafter that learns, and one that is interrupted and resumed."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.training.pair import LENGTH, ROWS, SHORT_ROWS, Pair, reporter
from tests.training.serving import decoded, serving_method

from blockdraft_drafter.checkpoint import load_drafter
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_training.batches import BatchBuilder
from blockdraft_training.errors import TrainingError
from blockdraft_training.export import export_drafter
from blockdraft_training.loop.held_out import make_validation
from blockdraft_training.loop.records import Reading
from blockdraft_training.loop.run import TrainedDrafter, train
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.target import HotVocabulary, as_cached, freeze


def weights_of(trained: TrainedDrafter) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(trained.model))
    return {".".join(map(str, key)): np.asarray(value[...]) for key, value in flat}


@pytest.mark.slow
@pytest.mark.optimized
def test_a_drafter_learns_what_its_target_says(pair: Pair, tmp_path: Path) -> None:
    settings = pair.settings(
        tmp_path / "run",
        corpus=(pair.corpus,),
        init="random",
        block_size=16,
        steps=900,
        batch_size=16,
        blocks_per_sequence=8,
        learning_rate=1e-2,
        distillation=0.2,
        validation_rows=0,
        checkpoint_every=1000,
        report_every=100,
    )
    trained = train(DFlashRecipe(settings), reporter())
    export_drafter(trained, DFlashRecipe(settings), tmp_path / "drafter", "blockdraft train dflash")

    # Through the drafter that serves, with the features the verifier would send.
    cache, features = pair.kept_features(tmp_path / "run", pair.rows)
    method = serving_method(pair.target, tmp_path / "drafter", longest=LENGTH, rows=16)
    gained = decoded(method, pair.rows, features)
    assert np.mean(gained) >= 8

    # Replaying the completions all at once says the same.
    drafter = load_drafter(DFLASH, tmp_path / "drafter", pair.checkpoint, dtype=jnp.float32)
    assert drafter.draft_ids is not None
    draftable = np.zeros(pair.decoder.config.vocab_size, int)
    draftable[drafter.draft_ids] = 1
    hot = HotVocabulary.of(draftable, len(drafter.draft_ids))
    builder = BatchBuilder.of(pair.rows, cache)
    validate = make_validation(
        DFlashRecipe(settings),
        drafter.model,
        builder,
        range(ROWS),
        complete=as_cached,
        dtype=jnp.dtype(jnp.float32),
    )
    frozen = freeze(pair.decoder, hot, online=False)
    acceptance = validate(nnx.to_pure_dict(nnx.state(drafter.model)), frozen)
    assert acceptance is not None
    assert acceptance.acceptance_length == pytest.approx(np.mean(gained))
    assert acceptance.per_position == pytest.approx(
        tuple(np.mean(np.array(gained) > position) for position in range(1, 16))
    )


class ProcessEndedError(Exception):
    """Stands for whatever ends a process."""


def test_a_resumed_run_is_the_uninterrupted_run(pair: Pair, tmp_path: Path) -> None:
    make = partial(pair.settings, layers=1, steps=8, checkpoint_every=4, report_every=2)
    once = train(DFlashRecipe(make(tmp_path / "once")), reporter())
    readings: list[int] = []

    def interrupt(reading: Reading) -> None:
        readings.append(reading.step)
        if reading.step == 6:
            raise ProcessEndedError

    with pytest.raises(ProcessEndedError):
        train(DFlashRecipe(make(tmp_path / "twice")), reporter(interrupt))
    resumed: list[int] = []
    twice = train(
        DFlashRecipe(make(tmp_path / "twice")),
        reporter(lambda reading: resumed.append(reading.step)),
    )
    assert (readings, resumed) == ([2, 4, 6], [6, 8])
    first, second = weights_of(once), weights_of(twice)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert weight.tobytes() == second[name].tobytes(), name
    histories = [
        [json.loads(line) for line in (tmp_path / name / "history.jsonl").read_text().splitlines()]
        for name in ("once", "twice")
    ]
    same = ("step", "loss", "accuracy", "acceptance_length", "validation")
    compared = [[{key: entry[key] for key in same} for entry in part] for part in histories]
    assert compared[0] == compared[1]
    assert [entry["step"] for entry in histories[0]] == [2, 4, 6, 8]
    assert [bool(entry["validation"]) for entry in histories[0]] == [False, True, False, True]
    # A finished run is not trained again.
    again = train(DFlashRecipe(make(tmp_path / "once")), reporter(interrupt))
    assert weights_of(again)["fc.weight"].tobytes() == first["fc.weight"].tobytes()
    assert (again.acceptance, again.rows) == (once.acceptance, once.rows)
    assert again.rows == SHORT_ROWS - 2


@pytest.mark.slow
def test_training_continues_from_an_exported_drafter(pair: Pair, tmp_path: Path) -> None:
    settings = pair.settings(tmp_path / "first")
    first = train(DFlashRecipe(settings), reporter())
    export_drafter(first, DFlashRecipe(settings), tmp_path / "drafter", "")
    # So small a rate that the weights stay where they start.
    still = pair.settings(
        tmp_path / "second", init=str(tmp_path / "drafter"), learning_rate=1e-12, steps=2
    )
    second = train(DFlashRecipe(still), reporter())
    for name, weight in weights_of(first).items():
        rounded = weight.astype(jnp.bfloat16).astype(np.float32)
        np.testing.assert_allclose(weights_of(second)[name], rounded, rtol=1e-6, atol=1e-8)
    wide = DFlashRecipe(replace(still, block_size=6, sample_from_anchor=True))
    config = wide.initial_model(pair.decoder, pair.checkpoint, None).config
    assert (config.block_size, config.block_inputs) == (6, 5)
    assert config.target_layer_ids == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 5}, "5 draft layers cannot copy 4 target layers"),
        ({"feature_layers": (1, 9)}, "target layer 9"),
        ({"validation_rows": 64}, "leave none to train on"),
        ({"max_length": 5}, "no row"),
    ],
)
def test_settings_that_do_not_fit_the_target_or_corpus(
    pair: Pair, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        train(DFlashRecipe(pair.settings(tmp_path, **changes)), reporter())
    assert isinstance(caught.value, TrainingError) or "target layer" in message


def test_a_random_start_may_be_deeper_than_the_target(pair: Pair, tmp_path: Path) -> None:
    recipe = DFlashRecipe(pair.settings(tmp_path, init="random", layers=5))
    model = recipe.initial_model(pair.decoder, pair.checkpoint, None)
    assert len(model.layers) == 5


def test_without_held_out_rows_no_acceptance_is_measured(pair: Pair, tmp_path: Path) -> None:
    recipe = DFlashRecipe(pair.settings(tmp_path))
    model = recipe.initial_model(pair.decoder, pair.checkpoint, None)
    builder = BatchBuilder.of(pair.rows, None)
    dtype = jnp.dtype(jnp.float32)
    validate = make_validation(recipe, model, builder, [], complete=as_cached, dtype=dtype)
    hot = HotVocabulary.of(np.ones(pair.decoder.config.vocab_size, int), 8)
    assert validate({}, freeze(pair.decoder, hot, online=False)) is None
