import pytest
from tests.fakes.verifier import FakeVerifier


@pytest.fixture
def verifier() -> FakeVerifier:
    return FakeVerifier()
