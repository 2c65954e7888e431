"""Features in shared memory are those of the store, and are not overwritten while in use."""

import mmap
import random

import ml_dtypes
import numpy as np
import pytest

from blockdraft_drafter.requests import to_array
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.drafting.feature_writers import (
    ALIGNMENT,
    MessageWriter,
    Ring,
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
    store = FeatureStore(len(PAGES), PAGE_SIZE, WIDTH)
    values = np.random.default_rng(0).standard_normal((16, WIDTH)).astype(ml_dtypes.bfloat16)
    store.write(PAGES, 0, values)
    return store


def written(
    writer: MessageWriter, step_id: int, store: FeatureStore, *ends: tuple[int, int]
) -> pb.Tensor:
    tensor = pb.Tensor()
    writer.write(tensor, step_id, store, places(*ends))
    return tensor


def places(*ends: tuple[int, int]) -> list[Positions]:
    return [Positions(PAGES, start, stop) for start, stop in ends]


@pytest.mark.parametrize("ends", [[(0, 1)], [(2, 9)], [(9, 16), (0, 1)], [(3, 4), (5, 5), (6, 8)]])
def test_both_ways_bring_the_same(
    memory: mmap.mmap, store: FeatureStore, ends: list[tuple[int, int]]
) -> None:
    shared = written(SharedWriter(memory), 1, store, *ends)
    message = written(MessageWriter(), 1, store, *ends)
    assert shared.HasField("shared_offset")
    wanted = store.read(places(*ends))
    np.testing.assert_array_equal(to_array(shared, memory), wanted)
    np.testing.assert_array_equal(to_array(message), wanted)


def test_what_is_in_use_stays(memory: mmap.mmap, store: FeatureStore) -> None:
    writer = SharedWriter(memory)
    first = written(writer, 1, store, (0, 4))
    second = written(writer, 2, store, (4, 8))
    # There is no room: it goes in the message.
    third = written(writer, 3, store, (8, 12))
    assert not third.HasField("shared_offset")
    for tensor, start in ((first, 0), (second, 4), (third, 8)):
        wanted = store.read(places((start, start + 4)))
        np.testing.assert_array_equal(to_array(tensor, memory), wanted)
    writer.answered(1)
    fourth = written(writer, 4, store, (12, 16))
    assert fourth.shared_offset == first.shared_offset
    np.testing.assert_array_equal(to_array(fourth, memory), store.read(places((12, 16))))
    np.testing.assert_array_equal(to_array(second, memory), store.read(places((4, 8))))


SIZE = 16 * ALIGNMENT


@pytest.mark.parametrize("seed", range(20))
def test_no_two_regions_in_use_overlap(seed: int) -> None:
    rng = random.Random(seed)
    ring, used, step, refused = Ring(SIZE), list[tuple[int, range]](), 1, 0
    for _ in range(400):
        if rng.random() < 0.6:
            step += rng.random() < 0.5
            size = rng.randint(1, SIZE // rng.choice([1, 4, 8]))
            start = ring.take(step, size)
            if start is None:
                refused += 1
                continue
            region = range(start, start + size)
            assert start % ALIGNMENT == 0
            assert start >= 0
            assert region.stop <= SIZE
            assert all(region.stop <= r.start or r.stop <= region.start for _, r in used)
            used.append((step, region))
        elif used:
            answered = rng.choice(used)[0]
            ring.give_back(answered)
            used = [(s, r) for s, r in used if s > answered]
    assert refused


def test_an_empty_ring_takes_all_of_it_and_no_more() -> None:
    ring = Ring(SIZE)
    assert ring.take(1, SIZE + 1) is None
    assert ring.take(1, SIZE) == 0
    assert ring.take(1, 1) is None
    ring.give_back(0)
    assert ring.take(2, 1) is None
    ring.give_back(1)
    assert ring.take(2, 1) == 0


def test_it_goes_around_as_far_as_the_oldest() -> None:
    ring = Ring(SIZE)
    half = SIZE // 2
    assert ring.take(1, half) == 0
    assert ring.take(2, half) == half
    ring.give_back(1)
    assert ring.take(3, half + 1) is None
    assert ring.take(3, half) == 0
    assert ring.take(4, 1) is None
    ring.give_back(2)
    assert ring.take(4, half) == half
