"""What features are, how a slice agrees on it, and that each row gets its own from the device."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_verifier.device.feature_form import (
    NO_FEATURES,
    FeatureForm,
    compilation_words,
    cut,
    read_compilation,
    split,
)

WEIGHT = np.arange(12, dtype=np.float32).reshape(2, 6).astype(ml_dtypes.bfloat16)
FORMS = {
    "none": NO_FEATURES,
    "raw": FeatureForm((0, 2)),
    "bare": FeatureForm((3,), FeatureProjection(WEIGHT), "0123456789abcdef"),
    "normalized": FeatureForm(
        (1, 2), FeatureProjection(WEIGHT.astype(np.float32), np.ones(2, np.float32), 1e-6), "f" * 16
    ),
    "normalized before": FeatureForm(
        (1, 2), FeatureProjection(WEIGHT, None, 1e-5, np.ones(6, ml_dtypes.bfloat16)), "e" * 16
    ),
    "normalized jointly": FeatureForm(
        (1, 2),
        FeatureProjection(WEIGHT, None, 1e-5, np.ones(6, ml_dtypes.bfloat16), joint=True),
        "d" * 16,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_others_compile_the_same(name: str) -> None:
    form = FORMS[name]
    found, max_block = read_compilation(compilation_words(form, 16))
    assert (found, max_block) == (form, 16)

    def shapes(projection: FeatureProjection | None) -> Any:
        return jax.tree.map(lambda array: (array.shape, array.dtype), projection)

    # The structure holds what is no array: the epsilon.
    assert shapes(found.projection) == shapes(form.projection)


def test_forms_differ_by_layers_and_elements() -> None:
    assert len(set(FORMS.values())) == len(FORMS)
    assert FORMS["bare"] == FeatureForm((3,), FORMS["normalized"].projection, "0123456789abcdef")
    assert FORMS["bare"] != FeatureForm((3,), FORMS["bare"].projection, "another")


@pytest.mark.parametrize(("name", "width"), [("none", 0), ("raw", 20), ("bare", 2)])
def test_width(name: str, width: int) -> None:
    assert FORMS[name].width(10) == width


def test_placing_keeps_the_elements() -> None:
    placed = FORMS["normalized"].placed(None)
    assert placed == FORMS["normalized"]
    assert placed.projection is not None
    assert isinstance(placed.projection.weight, jax.Array)
    np.testing.assert_array_equal(placed.projection.weight, WEIGHT.astype(np.float32))
    assert NO_FEATURES.placed(None) == NO_FEATURES


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
