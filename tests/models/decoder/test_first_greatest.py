"""The index of a row's greatest value is that of NumPy, whatever divides the row's width."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_models.decoder.sampling import first_greatest

index = jax.jit(first_greatest)

# A prime among them; their blocks are of 1, 2, 1, 16, 64, 128 and 384.
WIDTHS = (1, 2, 67, 96, 1024, 8192, 49_152)
# Few different ones, so that the greatest is there several times, in one block and in others.
VALUES = (-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf)


@settings(max_examples=60)
@given(st.sampled_from(WIDTHS), st.integers(1, len(VALUES)), st.integers(0, 2**32 - 1))
def test_the_first_of_equal_ones(width: int, kinds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice(np.array(VALUES[:kinds], np.float32), (3, width))
    assert index(values).tolist() == values.argmax(axis=1).tolist()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_end_of_a_row_and_of_its_blocks(width: int) -> None:
    for at in {0, 1 % width, width // 2, width - 1, 384 % width, 383 % width}:
        values = np.zeros((2, width), np.float32)
        values[1, at] = 1.0
        assert index(values).tolist() == [0, at]


def test_a_row_that_is_not_a_number_does_not_change_the_others() -> None:
    values = np.random.default_rng(0).standard_normal((3, 8192), np.float32)
    expected = values.argmax(axis=1)
    values[1, 5000] = np.nan
    found = np.asarray(index(values))
    assert 0 <= found[1] < 8192
    assert found[[0, 2]].tolist() == expected[[0, 2]].tolist()
