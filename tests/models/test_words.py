"""Arrays become words and arrays again, bit by bit."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_models.words import from_words, to_words, word_count


class Arrays(NamedTuple):
    flags: np.ndarray
    nested: tuple[np.ndarray, np.ndarray | None]
    numbers: np.ndarray


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(1, 3))
def test_arrays_come_back_as_they_were(seed: int, rows: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (rows, width), np.uint32)
    # Subnormal numbers, infinities and NaNs among them.
    arrays = Arrays(rng.random(3) < 0.5, (words.view(np.float32), None), words.T)
    packed = to_words(arrays)
    assert packed.dtype == np.int32
    assert packed.size == word_count(arrays)
    found = jax.jit(lambda words: from_words(words, arrays))(jnp.asarray(packed))
    for expected, array in zip(jax.tree.leaves(arrays), jax.tree.leaves(found), strict=True):
        assert array.dtype == expected.dtype
        assert np.asarray(array).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.int16])
def test_other_widths_are_refused(dtype: type) -> None:
    with pytest.raises(ValueError, match="32 bits"):
        to_words(np.zeros(4, dtype))
