"""A fixture that computes by the kernels of this CPU and once more by XLA's operations in tiles."""

from collections.abc import Iterator

import jax
import pytest
from tests.compiled_once import own_programs

from blockdraft_models.kernels import library


@pytest.fixture(params=["kernels", "tiles"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Compute in one way or the other; what was traced before counts no more."""
    if request.param == "tiles":
        monkeypatch.setattr(library, "_loaded", lambda: False)
    elif not library.in_kernels():
        pytest.skip("no C++ compiler here")
    jax.clear_caches()
    with own_programs():
        yield request.param
    jax.clear_caches()
