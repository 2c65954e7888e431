"""The ring never hands out what is in use, and hands out what is free."""

import random

import pytest

from blockdraft_verifier.drafting.feature_ring import ALIGNMENT, Ring

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
