"""One candidate: from the version that serves to the one that replaces it, and on.

It makes steps while nothing is decoded, is compared with the version that serves now and then, and
is promoted when it is better. Then it goes on, and the version that it became is what it must
surpass. Whoever kills the process loses no more than the steps since the last checkpoint.
"""

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.versions import Version, VersionStore
from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.online.candidate import Candidate, StepReading
from blockdraft_training.online.disk import Disk
from blockdraft_training.online.pace import Pace
from blockdraft_training.online.promotion import (
    LEAST_SEQUENCES,
    Comparison,
    Gains,
    Verdict,
    compare,
    decide,
    next_look,
)
from blockdraft_training.online.recorded import Slice, Traffic
from blockdraft_training.online.replay import replay, usable
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.start import Start, add_version, exported

logger = logging.getLogger(__name__)

# So many bad steps in a row are no accident of one batch.
_BAD_STEPS = 3
_LOWEST_RATE = 1 / 64
_LONGEST_PAUSE_SECONDS = 600.0
# As often as the drafter looks at the journal.
_NOTE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session works with.

    Attributes:
        settings: What to do.
        directory: Folder of recordings, versions and candidate.
        store: The versions.
        recipe: The method.
        journal: What was done.
        pace: When to compute.
        disk: Where to write.
        stopped: Whether to end.
        sleep: Lets seconds pass; may end early when stopped.
    """

    settings: LearnSettings
    directory: Path
    store: VersionStore
    recipe: DFlashRecipe
    journal: Journal
    pace: Pace
    disk: Disk
    stopped: Callable[[], bool]
    sleep: Callable[[float], object]


class Session:
    """The life of one candidate."""

    def __init__(
        self,
        around: Surroundings,
        start: Start,
        traffic: Traffic,
        candidate: Candidate,
        target_fingerprint: str,
    ) -> None:
        """Go on with the candidate on disk, if it is one of this start; else with this one.

        Args:
            around: What to work with.
            start: What the candidate began with.
            traffic: What to learn from.
            candidate: At its beginning.
            target_fingerprint: What is drafted for.
        """
        self._around, self._start, self._traffic = around, start, traffic
        self._candidate = candidate
        self._base = start.params
        self._target = target_fingerprint
        self._bad_steps = 0
        self._given_up = False
        self._noted_at = -_NOTE_SECONDS
        self._generator = np.random.default_rng(around.settings.seed)
        self._checkpoints = self._resumed()

    def run(self, first: Slice) -> None:
        """Learn until stopped, the candidate is given up, or something else serves."""
        piece: Slice | None = first
        try:
            while piece is None or piece.projected == self._candidate.projected:
                if piece is None:
                    self._around.sleep(self._around.settings.idle_seconds)
                elif not self._learn(piece):
                    return
                if self._over():
                    return
                piece = self._traffic.next_slice()
        finally:
            if self._around.stopped() and not self._given_up:
                self._save()
            self._checkpoints.close()

    def _over(self) -> bool:
        return self._around.stopped() or not self._start.still_serves(self._around.store)

    def _learn(self, piece: Slice) -> bool:
        """Learn from a slice; return whether the candidate goes on."""
        around, settings = self._around, self._around.settings
        micro = settings.micro_batch_size
        batches = piece.batches(micro, self._generator)
        per_step = settings.batch_size // micro
        for begin in range(0, len(batches), per_step):
            for numbers in batches[begin : begin + per_step]:
                around.pace.wait(self._stopped_waiting)
                if self._over():
                    return False
                self._candidate.add(piece.builder(numbers)(numbers))
            if not self._take(self._candidate.finish(around.journal.rate)):
                return False
        return True

    def _take(self, reading: StepReading) -> bool:
        """Note a step, look if it is time; return whether the candidate goes on."""
        journal, settings = self._around.journal, self._around.settings
        if not reading.made:
            return self._thrown_away()
        self._bad_steps = 0
        step = self._candidate.step
        journal.steps, journal.loss = step, reading.loss
        journal.total_steps += 1
        journal.stepped_at = time.time()
        self._note_now_and_then()
        if step >= journal.next_look and not self._look():
            return False
        if step % settings.checkpoint_every == 0:
            logger.info("step %d, loss %.3f", step, reading.loss)
            self._save()
        return True

    def _thrown_away(self) -> bool:
        journal = self._around.journal
        journal.thrown_away += 1
        journal.rate = max(journal.rate / 2, _LOWEST_RATE)
        self._bad_steps += 1
        logger.warning(
            "a step was thrown away: its loss or gradients were no numbers; rate × %g", journal.rate
        )
        if self._bad_steps < _BAD_STEPS:
            return True
        self._give_up(f"{self._bad_steps} bad steps in a row")
        return False

    def _look(self) -> bool:
        """Compare with what serves; return whether the candidate goes on."""
        around, journal, settings = self._around, self._around.journal, self._around.settings
        step = self._candidate.step
        journal.next_look = next_look(step, settings.first_look)
        rounded = exported(self._candidate.model())
        comparison = self._compared(nnx.to_pure_dict(nnx.state(rounded)))
        if comparison is None:
            return not around.stopped()
        journal.looks += 1
        journal.total_looks += 1
        journal.tau, journal.current_tau = comparison.candidate, comparison.current
        journal.sequences = comparison.sequences
        verdict = decide(
            comparison,
            journal.looks,
            confidence=settings.confidence,
            least_gain=settings.least_gain,
        )
        logger.info(
            "step %d, loss %.3f: τ %.3f on %d held-out sequences, %.3f what serves (%+.1f %%, by"
            " luck with a chance of %.2g): %s",
            step,
            journal.loss or 0.0,
            comparison.candidate,
            comparison.sequences,
            comparison.current,
            100 * comparison.gain,
            comparison.luck,
            verdict.value,
        )
        if verdict is Verdict.START_OVER:
            self._give_up("it became worse than what serves")
            return False
        journal.rate = min(1.0, 2 * journal.rate)
        if verdict is Verdict.PROMOTE:
            self._promote(rounded, comparison)
        self._note()
        return True

    def _compared(self, ours: Any) -> Comparison | None:
        """Compare on held-out recordings; None if there are too few, or learning was stopped."""
        around, candidate = self._around, self._candidate
        held = self._traffic.held_out(around.settings.held_out_sequences)
        numbers = [] if held is None else usable(held, candidate.slots)
        if held is None or len(numbers) < LEAST_SEQUENCES:
            logger.info("only %d held-out sequences: no comparison yet", len(numbers))
            return None

        def gains(params: Any) -> list[Gains]:
            return replay(
                candidate.matches_of,
                params,
                candidate.frozen,
                held,
                numbers,
                between=lambda: around.pace.wait(self._stopped_waiting),
                stopped=around.stopped,
            )

        mine = gains(ours)
        theirs = gains(self._base) if self._start.serves else around.settings.paying
        if around.stopped():
            return None
        return compare(mine, theirs, seed=around.journal.looks)

    def _promote(self, model: DFlash, comparison: Comparison) -> None:
        around, journal = self._around, self._around.journal
        added: list[Version] = []
        confidence = 1 - comparison.luck

        def write() -> None:
            reason = (
                f"τ {comparison.candidate:.3f} instead of {comparison.current:.3f} on"
                f" {comparison.sequences} held-out sequences"
            )
            version = add_version(
                around.store,
                around.recipe,
                model,
                self._start.draft_ids,
                kind="learned",
                parent=self._start.as_version(around.store),
                held_out_tau=comparison.candidate,
                parent_held_out_tau=comparison.current,
                confidence=confidence,
                reason=reason,
            )
            around.store.promote(version.number, reason)
            added.append(version)
            around.store.prune(around.settings.keep)

        if not around.disk.tried("a version", write) and not added:
            journal.next_look = self._candidate.step + 1
            around.sleep(around.settings.idle_seconds)
            return
        number = added[0].number
        logger.info("version %d is promoted", number)
        journal.promoted += 1
        journal.parent, journal.looks = number, 0
        self._start = replace(self._start, version=number, serves=True)
        self._base = nnx.to_pure_dict(nnx.state(model))
        self._save()

    def _give_up(self, why: str) -> None:
        """Leave the candidate; the next one begins after a pause that grows."""
        journal = self._around.journal
        journal.started_over += 1
        journal.rate = max(journal.rate / 2, _LOWEST_RATE)
        logger.warning("the candidate is given up at step %d: %s", self._candidate.step, why)
        self._given_up = True
        self._forget()
        self._note()
        pause = self._around.settings.idle_seconds / journal.rate
        self._around.sleep(min(_LONGEST_PAUSE_SECONDS, pause))

    def _save(self) -> None:
        around = self._around

        def write() -> None:
            try:
                self._checkpoints.save(self._candidate.state)
            except TrainingError as error:
                raise OSError(str(error)) from error

        if around.disk.tried("a checkpoint", write):
            self._note()
        else:
            around.sleep(around.settings.idle_seconds)

    def _stopped_waiting(self) -> bool:
        """Return whether to end; asked all the while that learning waits, which is to be seen."""
        self._note_now_and_then()
        return self._around.stopped()

    def _note_now_and_then(self) -> None:
        if time.monotonic() - self._noted_at >= _NOTE_SECONDS:
            self._note()

    def _note(self) -> None:
        around, self._noted_at = self._around, time.monotonic()
        around.journal.waited_seconds = around.pace.waited_seconds
        around.journal.recordings_refused = self._traffic.refused.total()
        around.disk.tried("the journal", lambda: around.journal.write(around.directory))

    def _resumed(self) -> Checkpoints:
        """Return the checkpoints, with the candidate at the newest one if it is of this start."""
        journal = self._around.journal
        if journal.parent == self._start.version and journal.next_look:
            try:
                checkpoints = self._opened()
                if checkpoints.latest is not None:
                    self._candidate.state = checkpoints.restore(self._candidate.state)
                    logger.info("going on with the candidate at step %d", self._candidate.step)
                    return checkpoints
                checkpoints.close()
            except (TrainingError, OSError) as error:
                logger.warning("the candidate cannot be gone on with: %s", error)
        self._forget()
        return self._opened()

    def _opened(self) -> Checkpoints:
        identity = {
            "target": self._target,
            "projected": self._candidate.projected,
            "shapes": [list(leaf.shape) for leaf in jax.tree.leaves(self._base)],
        }
        return Checkpoints(self._around.recipe.settings.output, identity)

    def _forget(self) -> None:
        journal = self._around.journal
        journal.begin_candidate(self._start.version, self._around.settings.first_look)
        shutil.rmtree(self._around.recipe.settings.output, ignore_errors=True)
