"""Training results for a seed do not change: what was lost at the first steps, once and for all."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.pair import Pair, reporter

from blockdraft_training.loop.run import train
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.methods.eagle3 import Eagle3Recipe
from blockdraft_training.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("known_peak")
EVERYTHING: dict[str, Any] = {
    "sample_from_anchor": True,
    "markov_rank": 3,
    "optimizer": "muon",
    "position_weights": "survival",
}


def test_the_first_losses_of_dflash(pair: Pair, tmp_path: Path) -> None:
    trained = train(DFlashRecipe(pair.settings(tmp_path, steps=3, **EVERYTHING)), reporter())
    losses = [entry["loss"] for entry in trained.history]
    np.testing.assert_allclose(losses, [3.11792, 3.22800, 3.22297], rtol=1e-3)


def test_the_first_losses_of_eagle3(pair: Pair, tmp_path: Path) -> None:
    settings = pair.settings(tmp_path, steps=3)
    shared = {field.name: getattr(settings, field.name) for field in fields(TrainSettings)}
    trained = train(Eagle3Recipe(TrainSettings(**shared)), reporter())
    losses = [entry["loss"] for entry in trained.history]
    np.testing.assert_allclose(losses, [4.17067, 4.33032, 3.53547], rtol=1e-3)
