"""Training samples of the tiny pair's target, and a learner on them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from prometheus_client import CollectorRegistry
from tests.drafter.learning.kept import Kept
from tests.models.builders import run_dense
from tests.training.pair import Pair

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.learning.samples import RAW, TrainingSample
from blockdraft_drafter.sources import AnyMethod
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.methods.eagle3 import Eagle3Recipe
from blockdraft_training.methods.recipe import AnyRecipe
from blockdraft_training.online.learner import Learner
from blockdraft_training.online.metrics import TrainerMetrics
from blockdraft_training.online.pace import Pace
from blockdraft_training.online.settings import LearnSettings, Schedule

LAYERS = (1, 2)


def samples_of(pair: Pair) -> list[TrainingSample]:
    """Return the pair's completions as the drafter would record them, raw."""
    ids = np.array([row.token_ids for row in pair.rows], np.int32)
    _, output = run_dense(pair.decoder, ids, LAYERS)
    features = np.asarray(output.captured).reshape(*ids.shape, -1).astype(ml_dtypes.bfloat16)
    fingerprint = pair.checkpoint.fingerprint
    return [
        TrainingSample(ids[number], features[number], fingerprint, RAW, LAYERS, len(row.prompt))
        for number, row in enumerate(pair.rows)
    ]


def record(samples: list[TrainingSample], directory: Path) -> None:
    """Write them into a folder of learning."""
    kept = Kept(directory / "samples", 1 << 30)
    for sample in samples:
        kept.add(sample)


def projected(sample: TrainingSample, model: DraftModel) -> TrainingSample:
    """Return a sample as it arrives where the verifier projects."""
    features = model.projection(jnp.asarray(sample.features))
    return replace(
        sample,
        features=np.asarray(features).astype(ml_dtypes.bfloat16),
        feature_form=model.projection.fingerprint(),
    )


def drafter_of(pair: Pair, directory: Path, method: AnyMethod = DFLASH) -> None:
    """Write a drafter made of the target's layers."""
    settings = pair.settings(directory / "unused", hot_vocabulary=0, feature_layers=LAYERS)
    recipe: AnyRecipe = (DFlashRecipe if method is DFLASH else Eagle3Recipe)(settings)
    model = recipe.initial_model(pair.decoder, pair.checkpoint, None)
    recipe.save(model, directory, None)


def settings_of(pair: Pair, directory: Path, drafter: Path | str, **changes: Any) -> LearnSettings:
    """Return what learns on the pair in seconds."""
    schedule: dict[str, Any] = {
        "feature_layers": LAYERS,
        "block_size": 4,
        "batch_size": 8,
        "warmup_steps": 5,
        "held_out_share": 0.3,
        "first_evaluation": 10,
        "checkpoint_every": 5,
        "passes": 1000,
        "idle_seconds": 0.01,
        "hot_vocabulary": 0,
    }
    return LearnSettings(
        target=str(pair.target),
        directory=directory,
        drafter=str(drafter),
        learning_rate=3e-3,
        schedule=Schedule(**{**schedule, **changes}),
    )


def learn(settings: LearnSettings, until: Callable[[Learner], bool], **more: Any) -> Learner:
    """Learn until something is true; with nothing else to wait for."""
    learners: list[Learner] = []
    pace, metrics = Pace(lambda: False, 0.0), TrainerMetrics(CollectorRegistry())

    def stopped() -> bool:
        return bool(learners and until(learners[0]))

    learner = Learner(settings, pace, metrics, stopped, **more)
    learners.append(learner)
    learner.run()
    return learner
