"""What tests of learning share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.drafter.builders import measure_nothing
from tests.e2e.learning_drafter import Learning, Target, begin
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.support import tiny_decoder

from blockdraft_drafter.compiled.runner import CompiledMethod
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
def learning(learning_target: Target, tmp_path: Path) -> Iterator[Learning]:
    learning = begin(learning_target, tmp_path / "learn")
    yield learning
    learning.learner.close()
