"""The tiny target, and an engine that decodes with it alone."""

import pytest
from tests.verifier.support import make_engine, tiny_decoder

from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.engine.loop import Engine


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> Engine:
    return make_engine(decoder)
