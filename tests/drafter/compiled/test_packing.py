"""Features in the fixed shapes that were compiled."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft_drafter.compiled.packing import PackedFeatures, pad_features

NOWHERE = 5


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 7, 8])
def test_padding_is_of_no_slot(count: int, dtype: type) -> None:
    rng = np.random.default_rng(count)
    features: NDArray[Any] = rng.standard_normal((count, 3)).astype(dtype)
    slots, positions, tokens = rng.integers(1, NOWHERE, (3, count)).astype(np.int32)
    padded = pad_features(PackedFeatures(features, slots, positions, tokens), 8, nowhere=NOWHERE)
    missing = 8 - count
    np.testing.assert_array_equal(padded.features, np.pad(features, ((0, missing), (0, 0))))
    assert padded.features.dtype == dtype
    assert padded.slots.tolist() == [*slots.tolist(), *[NOWHERE] * missing]
    assert padded.positions.tolist() == [*positions.tolist(), *[0] * missing]
    assert padded.next_tokens.tolist() == [*tokens.tolist(), *[0] * missing]
