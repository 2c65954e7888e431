"""What tests that compile for absent TPUs share."""

from collections.abc import Iterator

import pytest
from tests.compiled_once import jax_keeps_nothing


@pytest.fixture(autouse=True, scope="module")
def no_compilation_cache() -> Iterator[None]:
    """A program for a chip that is absent can be stored, but not loaded again."""
    with jax_keeps_nothing():
        yield
