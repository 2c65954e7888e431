"""The drafter's first linear map, wherever it is applied."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from blockdraft_models.decoder.feature_projection import FeatureProjection

WIDTH, FEATURES = 24, 60


def random_projection(*, normalized: bool, dtype: Any = np.float32) -> FeatureProjection:
    rng = np.random.default_rng(0)
    weight = (0.2 * rng.standard_normal((WIDTH, FEATURES))).astype(dtype)
    scale = rng.standard_normal(WIDTH).astype(dtype)
    return FeatureProjection(weight, scale, 1e-5) if normalized else FeatureProjection(weight)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (ml_dtypes.bfloat16, 0.02)])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_equals_the_formula(normalized: bool, dtype: Any, tolerance: float, rows: int) -> None:
    projection = random_projection(normalized=normalized, dtype=dtype)
    features = np.random.default_rng(1).standard_normal((rows, FEATURES)).astype(dtype)
    found = jax.jit(lambda projection, features: projection(features))(projection, features)
    assert found.dtype == dtype
    expected = features.astype(np.float64) @ np.asarray(projection.weight, np.float64).T
    if normalized:
        mean_square = np.mean(expected**2, axis=1, keepdims=True)
        expected *= np.asarray(projection.scale, np.float64) / np.sqrt(mean_square + 1e-5)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("joint", [False, True])
def test_outputs_are_normalized_before(joint: bool) -> None:
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((WIDTH, 3 * WIDTH)).astype(np.float32)
    scale = rng.standard_normal(3 * WIDTH).astype(np.float32)
    features = rng.standard_normal((5, 3, WIDTH)) * np.array([0.1, 1.0, 30.0])[:, None]
    projection = jax.device_put(FeatureProjection(weight, None, 1e-5, scale, joint))
    found = projection(jnp.asarray(features.reshape(5, -1), jnp.float32))
    normalized = features / np.sqrt(
        np.mean(features**2, axis=(1, 2) if joint else 2, keepdims=True) + 1e-5
    )
    expected = (normalized.reshape(5, -1) * scale) @ weight.T
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-4)


def test_features_of_another_type_are_taken() -> None:
    projection = jax.device_put(random_projection(normalized=True))
    features = jnp.ones((3, FEATURES), jnp.bfloat16)
    assert projection(features).dtype == np.float32
    assert (projection.input_width, projection.width) == (FEATURES, WIDTH)


def test_the_fingerprint_is_that_of_what_results_depend_on() -> None:
    one = random_projection(normalized=True)
    changed = one.weight.copy()
    changed[3, 5] = np.nextafter(changed[3, 5], 2)
    others = (
        replace(one, weight=changed),
        replace(one, weight=one.weight.reshape(FEATURES, WIDTH)),
        replace(one, weight=one.weight.astype(ml_dtypes.bfloat16)),
        replace(one, scale=one.scale + 1),
        replace(one, scale=None),
        replace(one, scale=None, input_scale=one.scale),
        replace(one, eps=1e-6),
        replace(one, joint=True),
    )
    prints = [projection.fingerprint() for projection in (one, *others)]
    assert len(set(prints)) == len(prints)
    assert all(len(each) == 16 for each in prints)
    placed = jax.device_put(one)
    assert placed.fingerprint() == prints[0]
