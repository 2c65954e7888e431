"""One candidate: from the version that serves to the one that replaces it, and on.

It makes steps while nothing is decoded, is compared with the version that serves now and then, and
is promoted when it is better. Then it goes on, and the version that it became is what it must
surpass. Whoever kills the process loses no more than the steps since the last checkpoint.
"""

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from blockdraft_training.online.candidate import Candidate
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
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.start import Start, add_version, exported
from blockdraft_training.online.traffic import Slice, Traffic

logger = logging.getLogger(__name__)

# So many bad steps in a row are no accident of one batch.
_BAD_STEPS = 3
_LOWEST_RATE = 1 / 64
_LONGEST_PAUSE_SECONDS = 600.0
# As often as the drafter looks at the journal.
_NOTE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all sessions work with.

    Attributes:
        settings: What to do.
        store: The versions; recordings and candidate are in its folder.
        recipe: The method.
        journal: What was done.
        pace: When to compute.
        stopped: Whether to end.
        sleep: Lets seconds pass; may end early when stopped.
    """

    settings: LearnSettings
    store: VersionStore
    recipe: DFlashRecipe
    journal: Journal
    pace: Pace
    stopped: Callable[[], bool]
    sleep: Callable[[float], object]
    _unwritten: set[str] = field(default_factory=set)

    def idle(self) -> None:
        """Let the time pass in which something may come, or a disk have room again."""
        self.sleep(self.settings.schedule.idle_seconds)

    def written(self, what: str, write: Callable[[], object]) -> bool:
        """Write to a disk that may be full; return whether that went well.

        The first failure is logged, and that all is well again once everything that failed could
        be written: small files find room where large ones do not.
        """
        try:
            write()
        except OSError as error:
            if not self._unwritten:
                logger.error("%s cannot be written, learning waits: %s", what, error)
            self._unwritten.add(what)
            return False
        if what in self._unwritten:
            self._unwritten.remove(what)
            if not self._unwritten:
                logger.info("%s can be written again", what)
        return True


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
        """Go on with the candidate on disk, if it is one of this start; else with this one."""
        self._around, self._start, self._traffic = around, start, traffic
        self._schedule = around.settings.schedule
        self._candidate = candidate
        self._base = candidate.start_params
        self._target = target_fingerprint
        self._bad_steps = 0
        self._given_up = False
        self._noted_at = -_NOTE_SECONDS
        self._generator = np.random.default_rng(0)
        self._checkpoints = self._resumed()

    def run(self, first: Slice) -> None:
        """Learn until stopped, the candidate is given up, or something else serves."""
        piece: Slice | None = first
        try:
            while piece is None or piece.projected == self._candidate.projected:
                if piece is None:
                    self._around.idle()
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
        batches = piece.batches(self._schedule.micro_batch_size, self._generator)
        per_step = self._schedule.batch_size // self._schedule.micro_batch_size
        for begin in range(0, len(batches), per_step):
            for numbers in batches[begin : begin + per_step]:
                self._wait()
                if self._over():
                    return False
                self._candidate.add(piece.builder(numbers)(numbers))
            if not self._take(self._candidate.finish(self._around.journal.rate)):
                return False
        return True

    def _take(self, loss: float | None) -> bool:
        """Note a step, look if it is time; return whether the candidate goes on."""
        journal = self._around.journal
        if loss is None:
            return self._thrown_away()
        self._bad_steps = 0
        step = self._candidate.step
        journal.steps, journal.loss = step, loss
        journal.total_steps += 1
        journal.stepped_at = time.time()
        self._note_now_and_then()
        if step >= journal.next_look and not self._look():
            return False
        if step % self._schedule.checkpoint_every == 0:
            logger.info("step %d, loss %.3f", step, loss)
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
        journal.next_look = next_look(step, self._schedule.first_look)
        rounded = exported(self._candidate.model())
        comparison = self._compared(rounded)
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
            least_gain=self._schedule.least_gain,
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

    def _compared(self, rounded: DFlash) -> Comparison | None:
        """Compare on held-out recordings; None if there are too few, or learning was stopped."""
        around, candidate = self._around, self._candidate
        held = self._traffic.held_out(self._schedule.held_out_sequences)
        numbers = [] if held is None else candidate.usable(held)
        if held is None or len(numbers) < LEAST_SEQUENCES:
            logger.info("only %d held-out sequences: no comparison yet", len(numbers))
            return None

        def gains(params: Any) -> list[Gains]:
            return candidate.gains(
                params, held, numbers, between=self._wait, stopped=around.stopped
            )

        mine = gains(nnx.to_pure_dict(nnx.state(rounded)))
        theirs = gains(self._base) if self._start.serves else self._schedule.paying
        if around.stopped():
            return None
        return compare(mine, theirs, seed=around.journal.looks)

    def _promote(self, model: DFlash, comparison: Comparison) -> None:
        around, journal = self._around, self._around.journal
        added: list[Version] = []
        reason = (
            f"τ {comparison.candidate:.3f} instead of {comparison.current:.3f} on"
            f" {comparison.sequences} held-out sequences"
        )

        def write() -> None:
            version = add_version(
                around.store,
                around.recipe,
                model,
                self._start.drafter.draft_ids,
                kind="learned",
                parent=self._start.as_version(around.store),
                held_out_tau=comparison.candidate,
                parent_held_out_tau=comparison.current,
                confidence=1 - comparison.luck,
                reason=reason,
            )
            around.store.promote(version.number, reason)
            added.append(version)
            around.store.prune(self._schedule.keep)

        if not around.written("a version", write) and not added:
            journal.next_look = self._candidate.step + 1
            around.idle()
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
        pause = self._schedule.idle_seconds / journal.rate
        self._around.sleep(min(_LONGEST_PAUSE_SECONDS, pause))

    def _save(self) -> None:
        def write() -> None:
            try:
                self._checkpoints.save(self._candidate.state)
            except TrainingError as error:
                raise OSError(str(error)) from error

        if self._around.written("a checkpoint", write):
            self._note()
        else:
            self._around.idle()

    def _wait(self) -> None:
        """Wait until nothing is decoded; that learning waits is to be seen meanwhile."""

        def stopped() -> bool:
            self._note_now_and_then()
            return self._around.stopped()

        self._around.pace.wait(stopped)

    def _note_now_and_then(self) -> None:
        if time.monotonic() - self._noted_at >= _NOTE_SECONDS:
            self._note()

    def _note(self) -> None:
        around, self._noted_at = self._around, time.monotonic()
        around.journal.waited_seconds = around.pace.waited_seconds
        around.journal.recordings_refused = self._traffic.refused.total()
        around.written("the journal", lambda: around.journal.write(around.store.directory))

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
        journal.begin_candidate(self._start.version, self._schedule.first_look)
        shutil.rmtree(self._around.recipe.settings.output, ignore_errors=True)
