"""What drafters gain on held-out recordings, replayed as serving would decode them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockdraft_training.features.frozen import Frozen
from blockdraft_training.loop.held_out import walk
from blockdraft_training.online.promotion import Gains
from blockdraft_training.online.recorded import Slice, padded


def usable(held_out: Slice, slots: int) -> list[int]:
    """Return the rows whose answers are long enough for a verification."""
    return [n for n, row in enumerate(held_out.rows) if len(row.response) > slots]


def replay(
    matches_of: Callable[..., Any],
    params: Any,
    frozen: Frozen,
    held_out: Slice,
    numbers: Sequence[int],
    *,
    between: Callable[[], None] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Gains]:
    """Return what a drafter gains on some rows.

    Args:
        matches_of: From `make_matches`.
        params: The drafter's weights.
        frozen: The target's.
        held_out: The recordings.
        numbers: Of its rows; see `usable`.
        between: Called before each row.
        stopped: Whether to leave the others out.
    """
    gained = []
    for number in numbers:
        between()
        if stopped():
            break
        answer = len(held_out.rows[number].response)
        batch = held_out.builder([number])([number])
        matches = np.asarray(matches_of(params, frozen, batch, padded(answer)))
        walked = walk(matches, answer)
        gained.append(Gains(sum(walked), len(walked)))
    return gained
