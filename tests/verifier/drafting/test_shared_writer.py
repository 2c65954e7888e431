"""Features in shared memory are those of the store, and are not overwritten while in use."""

import mmap

import ml_dtypes
import numpy as np
import pytest

from blockdraft_drafter.requests import to_array
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore
from blockdraft_verifier.drafting.feature_writers import (
    FeatureWriter,
    MessageWriter,
    Positions,
    SharedWriter,
)

WIDTH, PAGE_SIZE, PAGES = 32, 4, [3, 0, 2, 1]
ROW_BYTES = 2 * WIDTH
ROOM = 8 * ROW_BYTES


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, ROOM)


@pytest.fixture
def store() -> FeatureStore:
    store = FeatureStore(len(PAGES), PAGE_SIZE, WIDTH, np.dtype(ml_dtypes.bfloat16))
    values = np.random.default_rng(0).standard_normal((16, WIDTH)).astype(ml_dtypes.bfloat16)
    store.write(PAGES, 0, values)
    return store


def written(
    writer: FeatureWriter, step_id: int, store: FeatureStore, start: int, stop: int
) -> pb.Tensor:
    tensor = pb.Tensor()
    writer.write(tensor, step_id, store, Positions(PAGES, start, stop))
    return tensor


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2, 9), (5, 5), (9, 16)])
def test_both_ways_bring_the_same(
    memory: mmap.mmap, store: FeatureStore, start: int, stop: int
) -> None:
    shared = written(SharedWriter(memory), 1, store, start, stop)
    message = written(MessageWriter(), 1, store, start, stop)
    assert shared.HasField("shared_offset") == (stop > start)
    wanted = store.read(PAGES, start, stop)
    np.testing.assert_array_equal(to_array(shared, memory), wanted)
    np.testing.assert_array_equal(to_array(message), wanted)


def test_what_is_in_use_stays(memory: mmap.mmap, store: FeatureStore) -> None:
    writer = SharedWriter(memory)
    first = written(writer, 1, store, 0, 4)
    second = written(writer, 2, store, 4, 8)
    # There is no room: it goes in the message.
    third = written(writer, 3, store, 8, 12)
    assert not third.HasField("shared_offset")
    for tensor, start in ((first, 0), (second, 4), (third, 8)):
        wanted = store.read(PAGES, start, start + 4)
        np.testing.assert_array_equal(to_array(tensor, memory), wanted)
    writer.answered(1)
    fourth = written(writer, 4, store, 12, 16)
    assert fourth.shared_offset == first.shared_offset
    np.testing.assert_array_equal(to_array(fourth, memory), store.read(PAGES, 12, 16))
    np.testing.assert_array_equal(to_array(second, memory), store.read(PAGES, 4, 8))
