"""Features made in the step train like features kept on disk."""

from pathlib import Path

import numpy as np
import pytest
from tests.training.pair import Pair, reporter

from blockdraft_training.loop.run import train
from blockdraft_training.methods.dflash import DFlashRecipe

pytestmark = pytest.mark.usefixtures("known_peak")


def test_online_features_are_the_kept_ones_but_for_rounding(pair: Pair, tmp_path: Path) -> None:
    kept = train(DFlashRecipe(pair.settings(tmp_path / "kept")), reporter())
    online = train(DFlashRecipe(pair.settings(tmp_path / "online", online=True)), reporter())
    assert not (tmp_path / "online" / "features").exists()
    losses = [[entry["loss"] for entry in trained.history] for trained in (kept, online)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-2)
    assert losses[0] != losses[1], "bfloat16 should round something"
    assert kept.acceptance is not None
    assert online.acceptance is not None
    assert online.acceptance.acceptance_length == pytest.approx(
        kept.acceptance.acceptance_length, rel=0.2
    )
