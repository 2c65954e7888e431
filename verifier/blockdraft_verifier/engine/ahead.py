"""The step after the present one, launched before the present one is read.

A device would otherwise wait while the host reads a step, commits it and packs the next. Where
nothing can be drafted and no grammar is followed, only the chosen tokens are unknown, and those are
on the device: a row takes the token that it chose in the step before from there.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from blockdraft_verifier.device.feeding import chosen_by
from blockdraft_verifier.device.step_runner import LaunchedStep, StepResult, StepRunner
from blockdraft_verifier.scheduling.prompts import PromptRoom
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.scheduler import Scheduler
from blockdraft_verifier.scheduling.sequence import TokenSequence

# Drafters and their messages are looked after in the step that follows so many.
MAX_STEPS = 8


class PlannedStep(NamedTuple):
    """A step that was not read yet."""

    rows: tuple[Row, ...]
    read: LaunchedStep


class StepsAhead:
    """Launches steps ahead of those that are to be read."""

    def __init__(self, scheduler: Scheduler, can_draft: Callable[[TokenSequence], bool]) -> None:
        """Look at sequences of `scheduler`, some of which can be drafted for."""
        self._scheduler, self._can_draft = scheduler, can_draft
        self._count = 0
        self._step: PlannedStep | None = None

    def take(self) -> PlannedStep | None:
        """Return the step that was launched ahead, if one was."""
        step, self._step = self._step, None
        if step is None:
            self._count = 0
        return step

    def follow(self, rows: Sequence[Row], runner: StepRunner, prompt_room: PromptRoom) -> None:
        """Launch the step after one of `rows`, unless it depends on what that one gains."""
        if self._count == MAX_STEPS or not self._foreseeable(rows):
            return
        with _as_if_read(rows):
            following = self._scheduler.plan(prompt_room=prompt_room, ahead=True)
            read = runner.launch_ahead(following) if following else None
        if read is not None:
            self._count += 1
            self._step = PlannedStep(following, read)

    def of_running(
        self, rows: tuple[Row, ...], result: StepResult
    ) -> tuple[tuple[Row, ...], StepResult]:
        """Leave out the rows of sequences that ended after their step had been launched."""
        running = set(self._scheduler.running)
        indices = [index for index, row in enumerate(rows) if row.sequence in running]
        return tuple(rows[index] for index in indices), result.of_rows(indices)

    def _foreseeable(self, rows: Sequence[Row]) -> bool:
        scheduler = self._scheduler
        sequences = scheduler.running
        # Preempting would take pages from the step under way.
        new_pages = len(sequences) + scheduler.settings.max_step_tokens // scheduler.pages.page_size
        return (
            not scheduler.waiting
            and scheduler.diffusion is None
            and new_pages <= scheduler.pages.available
            and not any(s.grammar is not None for s in sequences)
            and not any(s.decoding and self._can_draft(s) for s in sequences)
            and not any(
                row.draft_count
                or row.masks_tokens
                or (row.chooses and self._can_draft(row.sequence))
                for row in rows
            )
        )


@contextlib.contextmanager
def _as_if_read(rows: Sequence[Row]) -> Iterator[None]:
    """Advance the sequences of a step; tokens not read yet are `chosen_by` their rows."""
    choosing = [row.sequence for row in rows if row.chooses]
    for index, row in enumerate(rows):
        if row.chooses:
            row.sequence.tokens.append(chosen_by(index))
        row.sequence.committed += row.known_count
    try:
        yield
    finally:
        for sequence in choosing:
            sequence.tokens.pop()
        for row in rows:
            row.sequence.committed -= row.known_count
