"""Tests compute with the shapes that annotations say, or fail."""

import jax.numpy as jnp
import jaxtyping
import pytest

from blockdraft_models.decoder.layer import normalize


def test_arrays_of_other_shapes_are_refused() -> None:
    normalize(jnp.ones((2, 4)), jnp.ones(4), 1e-6)
    with pytest.raises(jaxtyping.TypeCheckError, match="scale"):
        normalize(jnp.ones((2, 4)), jnp.ones(5), 1e-6)
