"""Which features leave the device, and that each row gets its own."""

import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_verifier.device.feature_form import cut, split


@pytest.mark.parametrize(
    ("total", "first", "sizes"),
    [
        (1, 1, [1]),
        (16, 1, [1, 1, 2, 4, 8]),
        (64, 4, [4, 4, 8, 16, 32]),
        (16, 16, [16]),
        (8, 16, [8]),
        (24, 5, [5, 5, 10, 4]),
    ],
)
def test_pieces_double(total: int, first: int, sizes: list[int]) -> None:
    pieces = cut(jnp.arange(float(total))[:, None], first)
    assert [len(piece) for piece in pieces] == sizes
    np.testing.assert_array_equal(np.concatenate(pieces)[:, 0], np.arange(total))


@pytest.mark.parametrize("seed", range(20))
def test_each_row_gets_its_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 9))
    counts = rng.integers(0, 12, rows).tolist()
    total = sum(counts) + int(rng.integers(1, 20))
    features = rng.standard_normal((total, 3)).astype(np.float32)
    found = split(cut(jnp.asarray(features), rows), counts)
    assert [len(each) for each in found] == counts
    np.testing.assert_array_equal(np.concatenate(found), features[: sum(counts)])


def test_what_is_not_needed_stays_on_the_device() -> None:
    pieces = cut(jnp.arange(16.0)[:, None], 4)
    for unneeded in pieces[2:]:
        unneeded.delete()
    one, two = split(pieces, [3, 5])
    np.testing.assert_array_equal(np.concatenate([one, two])[:, 0], np.arange(8))
    with pytest.raises(RuntimeError, match="deleted"):
        split(pieces, [3, 6])
