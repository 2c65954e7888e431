"""A fixture that computes by the kernels of this CPU and once more by XLA's operations in tiles."""

from collections.abc import Iterator

import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from tests.compiled_once import own_programs

from blockdraft_models.kernels import library


@pytest.fixture(params=["kernels", "tiles"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Compute in one way or the other."""
    if request.param == "tiles":
        monkeypatch.setattr(library, "_loaded", lambda: False)
    elif not library.in_kernels():
        pytest.skip("no C++ compiler here")
    # Metadata is part of the key of what JAX has traced; to clear all its caches takes longer.
    with set_xla_metadata(arithmetic=request.param), own_programs():
        yield request.param
