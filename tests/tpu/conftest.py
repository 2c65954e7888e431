"""What tests that compile for absent TPUs share."""

from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(autouse=True, scope="module")
def no_compilation_cache() -> Iterator[None]:
    """A program for a chip that is absent can be stored, but not loaded again."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    # Whether the cache is used is asked once, at the first compilation.
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()
