"""The progress of a start: what it does, how far it is, and about how long it will go on."""

import time
from collections.abc import Callable, Mapping

# Beyond this the count of a stage is one of bytes, which nobody reads.
_MOST_COUNTED = 10_000
# From this share of its units on, the pace of a stage says more than the last start.
_TELLING_SHARE = 0.25

Report = Callable[[str, int, int], None]
"""Takes the stage of a start, its finished units, and their total, 0 if unknown."""


class StartProgress:
    """The stages of a start.

    Attributes:
        last: Seconds of each stage of the last start; empty if there is none.
        seconds: Seconds of each stage that has ended.
    """

    def __init__(self) -> None:
        """Begin the stage `starting`."""
        self.last: Mapping[str, float] = {}
        self.seconds: dict[str, float] = {}
        self._stage = "starting", 0, 0
        self._stage_began = time.monotonic()

    def report(self, stage: str, count: int = 0, total: int = 0) -> None:
        """Set the progress; any thread may call this. A total of 0 is unknown."""
        if stage != self._stage[0]:
            now = time.monotonic()
            self.seconds[self._stage[0]] = now - self._stage_began
            self._stage_began = now
        self._stage = stage, count, total

    @property
    def state(self) -> Mapping[str, object]:
        """The last report: `stage`, `done` of `total` units, and all of it in `words`."""
        stage, count, total = self._stage
        return {"stage": stage, "done": count, "total": total, "words": self.words()}

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end of the start, or of the stage if no start was before; or None."""
        stage, count, total = self._stage
        elapsed = time.monotonic() - self._stage_began
        past = {stage, *self.seconds}
        to_come = sum(seconds for name, seconds in self.last.items() if name not in past)
        if 0 < count < total and (stage not in self.last or count >= _TELLING_SHARE * total):
            return elapsed * (total - count) / count + to_come
        return max(0.0, self.last.get(stage, 0.0) - elapsed) + to_come if self.last else None

    def words(self) -> str:
        """Return the progress in words: `compiling steps, 6 of 20, about 40 s`."""
        stage, count, total = self._stage
        left = self.seconds_left or 0.0
        counted = f", {count} of {total}" if 1 < total < _MOST_COUNTED else ""
        if total >= _MOST_COUNTED:
            counted = f", {100 * count // total} %"
        return stage + counted + (f", about {left:.0f} s" if left >= 1 else "")
