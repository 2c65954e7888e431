"""Measuring several things in turn, so that a noisy moment of the machine meets all of them."""

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

Point = TypeVar("Point")
Sample = TypeVar("Sample")

# The first calls meet cold caches, unmapped memory and connections that open their windows.
UNCOUNTED_ROUNDS = 3


def sample_in_rounds(
    measures: Mapping[Point, Callable[[], Sample]],
    runs: int,
    on_sample: Callable[[], None] = lambda: None,
    uncounted: int = UNCOUNTED_ROUNDS,
) -> dict[Point, list[Sample]]:
    """Take a sample of every point once a round, each round in another order.

    Args:
        measures: Takes one sample of a point.
        runs: Rounds that count.
        on_sample: Called after every sample.
        uncounted: Rounds before them, which do not count.

    Returns:
        The samples of each point.
    """
    samples: dict[Point, list[Sample]] = {point: [] for point in measures}
    rng = random.Random(0)
    for turn in range(uncounted + runs):
        # What ran just before leaves its traces in the processor's caches.
        for point in rng.sample(list(measures), len(measures)):
            sample = measures[point]()
            if turn >= uncounted:
                samples[point].append(sample)
            on_sample()
    return samples
