"""Which parts of a ring of memory are in use: taken in order, given back in order."""

from collections import deque
from dataclasses import dataclass

# Where one region begins; arrays that do are copied fastest.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Region:
    """A region in use, for the step it was taken for; in bytes from the beginning."""

    step_id: int
    start: int
    stop: int


class Ring:
    """Hands out regions of a ring; pure bookkeeping."""

    def __init__(self, size: int) -> None:
        """Start with nothing in use.

        Args:
            size: Of the ring, in bytes.
        """
        self._size = size
        self._used: deque[Region] = deque()

    def take(self, step_id: int, size: int) -> int | None:
        """Return where a region of `size` bytes begins, or None if there is no room now.

        Args:
            step_id: What it is taken for; never less than at an earlier call.
            size: In bytes.
        """
        start = self._next_start(size)
        if start is not None:
            self._used.append(Region(step_id, start, start + size))
        return start

    def give_back(self, step_id: int) -> None:
        """Give back what was taken for this step and all before it."""
        while self._used and self._used[0].step_id <= step_id:
            self._used.popleft()

    def _next_start(self, size: int) -> int | None:
        if not self._used:
            return 0 if size <= self._size else None
        oldest, newest = self._used[0], self._used[-1]
        after = -(-newest.stop // ALIGNMENT) * ALIGNMENT
        if newest.start >= oldest.start:
            if after + size <= self._size:
                return after
            # What is left at the end is too little; go on at the beginning.
            after = 0
        return after if after + size <= oldest.start else None
