"""Features are found where their positions are, whatever pages these have."""

import numpy as np
import pytest
from tests.verifier.device.slots import token_slots

from blockdraft_verifier.device.cache import FEATURE_DTYPE, FeatureStore, Positions

PAGE_SIZE, PAGES, WIDTH = 4, 12, 3


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_what_was_written_last(seed: int) -> None:
    rng = np.random.default_rng(seed)
    store = FeatureStore(PAGES, PAGE_SIZE, WIDTH)
    expected = np.zeros((PAGES * PAGE_SIZE, WIDTH), FEATURE_DTYPE)
    for _ in range(50):
        pages = rng.permutation(PAGES)[: rng.integers(1, PAGES + 1)].tolist()
        start, stop = sorted(rng.integers(0, len(pages) * PAGE_SIZE + 1, 2).tolist())
        slots = token_slots(pages, start, stop, PAGE_SIZE).tolist()
        features = rng.standard_normal((stop - start, WIDTH)).astype(FEATURE_DTYPE)
        store.write(pages, start, features)
        expected[slots] = features
        ends = rng.integers(0, len(pages) * PAGE_SIZE + 1, (rng.integers(0, 4), 2))
        positions = [Positions(pages, *sorted(each)) for each in ends.tolist()]
        slots = [
            slot
            for place in positions
            for slot in token_slots(place.pages, place.start, place.stop, PAGE_SIZE).tolist()
        ]
        wanted = expected[np.array(slots, np.int64)]
        np.testing.assert_array_equal(store.read(positions), wanted)
        place = np.full((len(slots), WIDTH), np.nan, FEATURE_DTYPE)
        assert store.read(positions, out=place) is place
        np.testing.assert_array_equal(place, wanted)
