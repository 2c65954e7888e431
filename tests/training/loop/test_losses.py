"""Training results for a seed do not change: what was lost at the first steps, once and for all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.pair import Pair, reporter

from blockdraft_training.loop.run import train
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.methods.eagle3 import Eagle3Recipe

EVERYTHING: dict[str, Any] = {
    "sample_from_anchor": True,
    "markov_rank": 3,
    "optimizer": "muon",
    "position_weights": "survival",
}


@pytest.mark.parametrize(
    ("changes", "losses", "tau"),
    [
        ({}, (4.05964, 4.07861, 3.67687), 1.265),
        # Features made in the step are the kept ones but for their rounding to bfloat16.
        ({"online": True}, (4.05964, 4.07861, 3.67687), 1.265),
        (EVERYTHING, (3.11792, 3.22800, 3.22297), 1.955),
    ],
    ids=["kept", "online", "everything"],
)
def test_dflash(
    pair: Pair, tmp_path: Path, changes: dict[str, Any], losses: tuple[float, ...], tau: float
) -> None:
    trained = train(DFlashRecipe(pair.settings(tmp_path, steps=3, **changes)), reporter())
    np.testing.assert_allclose([entry["loss"] for entry in trained.history], losses, rtol=1e-4)
    assert (tmp_path / "features").exists() == ("online" not in changes)
    assert trained.acceptance is not None
    assert trained.acceptance.acceptance_length == pytest.approx(tau, rel=0.1)


def test_eagle3(pair: Pair, tmp_path: Path) -> None:
    trained = train(Eagle3Recipe(pair.eagle3(tmp_path, steps=3)), reporter())
    losses = [entry["loss"] for entry in trained.history]
    np.testing.assert_allclose(losses, (4.17067, 4.33032, 3.53547), rtol=1e-4)
