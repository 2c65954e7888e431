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
        ({}, (4.40142, 4.31806, 4.26960), 1.05),
        # Features made in the step are the kept ones but for their rounding to bfloat16.
        ({"online": True}, (4.40142, 4.31806, 4.26960), 1.05),
        (EVERYTHING, (3.21253, 3.15562, 3.21868), 1.955),
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
    np.testing.assert_allclose(losses, (4.25900, 4.46883, 4.29918), rtol=1e-4)
