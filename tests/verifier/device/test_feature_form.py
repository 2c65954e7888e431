"""What features are, and how the processes of a slice agree on it."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_verifier.device.feature_form import (
    NO_FEATURES,
    FeatureForm,
    compilation_words,
    read_compilation,
)

WEIGHT = np.arange(12, dtype=np.float32).reshape(2, 6).astype(ml_dtypes.bfloat16)
FORMS = {
    "none": NO_FEATURES,
    "raw": FeatureForm((0, 2)),
    "bare": FeatureForm((3,), FeatureProjection(WEIGHT), "0123456789abcdef"),
    "normalized": FeatureForm(
        (1, 2), FeatureProjection(WEIGHT.astype(np.float32), np.ones(2, np.float32), 1e-6), "f" * 16
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
