"""A sync with a drafter made by hand."""

import pytest
from tests.verifier.drafting.by_hand import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
