"""What tests of learning share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flax import nnx
from tests.drafter.builders import measure_nothing
from tests.e2e.learning_drafter import Learning, Target, begin
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.support import tiny_decoder

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_models.weights.loading import load_checkpoint_config


@pytest.fixture(scope="module")
def learning_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    decoder, path = tiny_decoder(), tmp_path_factory.mktemp("target")
    write_hf_checkpoint(decoder, path)
    return Target(decoder, path, load_checkpoint_config(path))


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile only what a test drafts with, if it does."""
    monkeypatch.setattr(CompiledMethod, "warm_up", measure_nothing)


@pytest.fixture
def learning(
    request: pytest.FixtureRequest, learning_target: Target, tmp_path: Path
) -> Iterator[Learning]:
    drafter = "random"
    if getattr(request, "param", "dflash") == "eagle3":
        # The tiny target has too few layers for a random one.
        config = Eagle3Config.default_for(
            learning_target.decoder.config, block_size=4, target_layer_ids=(0, 1)
        )
        save_drafter(Eagle3(config, rngs=nnx.Rngs(3)), tmp_path / "eagle3")
        drafter = str(tmp_path / "eagle3")
    learning = begin(learning_target, tmp_path / "learn", drafter)
    yield learning
    learning.serving.close()
