"""A target that talks."""

from pathlib import Path

import pytest
from tests.training.talkative_target import write_talkative_target

from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talkative_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def tokenizer(target: Path) -> Tokenizer:
    return load_tokenizer(target)
