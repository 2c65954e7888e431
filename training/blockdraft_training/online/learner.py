"""Learning while serving: makes better versions of the drafter from training samples.

A candidate begins with the weights of the version that serves. It makes steps while nothing is
decoded, is evaluated against that version at growing intervals, and is promoted when it is better.
Then it goes on, and must surpass the version that it became. If the process is killed, no more is
lost than the steps since the candidate's last checkpoint.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_drafter.learning.comparison import (
    Comparison,
    SequenceGain,
    allowed_error,
    compare,
)
from blockdraft_drafter.learning.samples import SampleStore
from blockdraft_drafter.learning.versions import VersionError, VersionStore
from blockdraft_models.weights.loading import load_embedding_and_head
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.loop.run import activation_dtype
from blockdraft_training.online.candidate import Candidate
from blockdraft_training.online.journal import Journal
from blockdraft_training.online.metrics import TrainerMetrics
from blockdraft_training.online.pace import Pace
from blockdraft_training.online.parent import Parent, add_version, exported, find_parent
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.traffic import Slice, Traffic
from blockdraft_training.target import HotVocabulary, freeze_shared

logger = logging.getLogger(__name__)

# After so many bad steps in a row the candidate is abandoned.
_BAD_STEPS = 3
_LOWEST_RATE = 1 / 64
_LONGEST_PAUSE_SECONDS = 600.0
# With fewer held-out sequences not even a gain on all of them would be significant.
_LEAST_SEQUENCES = 8
# Steps between two evaluations, as a share of the steps made: so few evaluations are made that the
# chance of being wrong that is left for one does not become too small.
_GROWTH = 0.25


class _AbandonedError(Exception):
    """A candidate is to be abandoned; the message says why."""


class Learner:
    """Makes candidates of one drafter, one after another; `journal` counts what it did."""

    def __init__(
        self,
        settings: LearnSettings,
        pace: Pace,
        metrics: TrainerMetrics,
        stopped: Callable[[], bool],
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Load the target's embedding and head; `ModelError` if they cannot be loaded.

        `pace` says when to compute, `stopped` whether to end; `sleep` may end early when stopped.
        """
        self._settings, self._schedule = settings, settings.schedule
        self._pace, self._metrics, self._stopped, self._sleep = pace, metrics, stopped, sleep
        self._dtype = activation_dtype(settings.dtype)
        self._shared, self._target = load_embedding_and_head(
            resolve_target(settings.target), dtype=self._dtype
        )
        self._directory = settings.directory_for(self._target.fingerprint)
        self._store = VersionStore(self._directory)
        self.journal = Journal.read(self._directory)
        metrics.publish(self.journal)
        self._generator = np.random.default_rng(0)
        self._logged = ""
        self._unwritten: set[str] = set()

    def run(self) -> None:
        """Learn until stopped; TrainingError or ModelError if the drafter can never learn."""
        while not self._stopped():
            parent = self._find_parent()
            if parent is None:
                self._sleep(self._schedule.idle_seconds)
            else:
                self._learn_from(parent)

    def _find_parent(self) -> Parent | None:
        """Return the version to learn from; None if it cannot be written or loaded."""
        try:
            with self._writing("the first version"):
                return find_parent(self._store, self._settings, self._target)
        except VersionError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                logger.warning("%s", error)
        return None

    def _learn_from(self, parent: Parent) -> None:
        """Make one candidate, until it is abandoned or another version serves."""
        self._parent = parent
        samples = SampleStore(self._directory / "samples", 0)
        self._traffic = Traffic(samples, parent.form(self._target), self._settings)
        piece = self._next_slice()
        if piece is None:
            return
        vocab, draft_ids = self._target.config.vocab_size, parent.drafter.draft_ids
        hot = np.arange(vocab) if draft_ids is None else draft_ids
        self._candidate = Candidate(
            parent.recipe,
            parent.drafter.model,
            freeze_shared(self._shared, HotVocabulary.with_ids(hot, vocab)),
            projected=piece.projected,
            learning_rate=self.journal.rate * self._settings.rate(parent.from_nothing),
            warmup_steps=self._schedule.warmup_steps,
            dtype=self._dtype,
        )
        # The weights of what serves, and bad steps in a row.
        self._base, self._bad_steps = self._candidate.start_params, 0
        self._checkpoints = self._resumed()
        try:
            while piece is not None and piece.projected == self._candidate.projected:
                self._learn(piece)
                piece = self._next_slice()
            if self._stopped():
                self._save()
        except _AbandonedError as error:
            self._abandon(str(error))
        finally:
            self._checkpoints.close()

    def _next_slice(self) -> Slice | None:
        """Wait for a slice to learn from; None if another version serves or learning ends."""
        while not self._over():
            piece = self._traffic.next_slice()
            if piece is not None:
                return piece
            self._sleep(self._schedule.idle_seconds)
        return None

    def _over(self) -> bool:
        return self._stopped() or not self._parent.still_serves(self._store)

    def _learn(self, piece: Slice) -> None:
        """Learn from a slice; end early if another version serves or learning is stopped."""
        for numbers in piece.batches(self._schedule.batch_size, self._generator):
            self._pace.wait(self._stopped)
            if self._over():
                return
            self._stepped(self._candidate.learn(piece.builder(numbers)(numbers)))

    def _stepped(self, loss: float | None) -> None:
        """Note a step, and evaluate the candidate if it is time."""
        journal, step = self.journal, self._candidate.step
        if loss is None:
            logger.warning("a step was discarded: its loss or gradients were not finite")
            journal.thrown_away += 1
            self._bad_steps += 1
            if self._bad_steps == _BAD_STEPS:
                raise _AbandonedError(f"{self._bad_steps} bad steps in a row")
            return
        self._bad_steps = 0
        journal.steps, journal.loss, journal.stepped_at = step, loss, time.time()
        journal.total_steps += 1
        self._note()
        if step >= journal.next_evaluation:
            self._evaluate()
        if step % self._schedule.checkpoint_every == 0:
            logger.info("step %d, loss %.3f", step, loss)
            self._save()

    def _evaluate(self) -> None:
        """Compare with the version that serves, then promote, go on or start over."""
        journal, step = self.journal, self._candidate.step
        journal.next_evaluation = step + max(self._schedule.first_evaluation, round(step * _GROWTH))
        rounded = exported(self._candidate.model())
        comparison = self._compared(rounded)
        if comparison is None:
            return
        journal.evaluations += 1
        journal.total_evaluations += 1
        journal.tau, journal.current_tau = comparison.new, comparison.old
        journal.sequences = comparison.pairs
        allowed = allowed_error(journal.evaluations, 1 - self._settings.confidence)
        better = comparison.luck <= allowed and comparison.gain >= self._schedule.least_gain
        worse = comparison.bad_luck <= allowed
        logger.info(
            "step %d, loss %.3f: τ %.3f on %d held-out sequences, %.3f for the version that serves"
            " (%+.1f %%, by luck with a chance of %.2g): %s",
            step,
            journal.loss or 0.0,
            comparison.new,
            comparison.pairs,
            comparison.old,
            100 * comparison.gain,
            comparison.luck,
            "promote" if better else "start over" if worse else "go on",
        )
        if worse:
            raise _AbandonedError("it became worse than the version that serves")
        if better:
            self._promote(rounded, comparison)
        self._note()

    def _compared(self, rounded: DraftModel) -> Comparison | None:
        """Return the comparison on held-out samples; None with too few, or if learning stopped."""
        candidate = self._candidate
        # A completion must be long enough for a verification.
        held_out = self._traffic.held_out(self._schedule.held_out_sequences, candidate.slots)
        count = 0 if held_out is None else len(held_out.rows)
        if held_out is None or count < _LEAST_SEQUENCES:
            logger.info("only %d held-out sequences: no evaluation yet", count)
            return None

        def gained(params: Any) -> list[SequenceGain]:
            results = []
            for number in range(count):
                self._pace.wait(self._stopped)
                if self._stopped():
                    break
                results.append(candidate.gained(params, held_out, number))
            return results

        mine = gained(nnx.to_pure_dict(nnx.state(rounded)))
        theirs = gained(self._base) if self._parent.serves else self._schedule.paying
        return None if self._stopped() else compare(mine, theirs)

    def _promote(self, model: DraftModel, comparison: Comparison) -> None:
        """Let the candidate serve as it is; from now on it must surpass that version."""
        reason = (
            f"τ {comparison.new:.3f} instead of {comparison.old:.3f} on"
            f" {comparison.pairs} held-out sequences"
        )
        version = None
        with self._writing("a version"):
            added = add_version(
                self._store,
                self._parent.recipe,
                model,
                self._parent.drafter.draft_ids,
                kind="learned",
                parent=self._parent.version.number,
                held_out_tau=comparison.new,
                parent_held_out_tau=comparison.old,
                confidence=1 - comparison.luck,
                reason=reason,
            )
            version = self._store.promote(added.number, reason)
            self._store.prune(self._schedule.keep)
        if version is None:
            self.journal.next_evaluation = self._candidate.step + 1
            self._sleep(self._schedule.idle_seconds)
            return
        logger.info("version %d is promoted", version.number)
        self.journal.promoted += 1
        self.journal.rate = min(1.0, 2 * self.journal.rate)
        self.journal.parent, self.journal.evaluations = version.number, 0
        self._parent = replace(self._parent, version=version)
        self._base = nnx.to_pure_dict(nnx.state(model))
        self._save()

    def _abandon(self, reason: str) -> None:
        """Abandon the candidate; the next one begins after a pause that grows."""
        logger.warning("the candidate is abandoned at step %d: %s", self._candidate.step, reason)
        self.journal.started_over += 1
        self.journal.rate = max(self.journal.rate / 2, _LOWEST_RATE)
        self._forget()
        self._note()
        pause = self._schedule.idle_seconds / self.journal.rate
        self._sleep(min(_LONGEST_PAUSE_SECONDS, pause))

    def _note(self) -> None:
        self.journal.samples_refused = self._traffic.refused.total()
        self._metrics.publish(self.journal)
        with self._writing("the journal"):
            self.journal.write(self._directory)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Go on if a write fails.

        Only the first failure is logged. The recovery is logged when all that failed could be
        written: a full disk may have space for small files but not for large ones.
        """
        try:
            yield
        except OSError as error:
            if not self._unwritten:
                logger.error("%s cannot be written, learning waits: %s", name, error)
            self._unwritten.add(name)
            return
        if name in self._unwritten:
            self._unwritten.remove(name)
            if not self._unwritten:
                logger.info("%s can be written again", name)

    def _save(self) -> None:
        with self._writing("a checkpoint"):
            try:
                self._checkpoints.save(self._candidate.state)
            except TrainingError as error:
                raise OSError(str(error)) from error
        if "a checkpoint" in self._unwritten:
            self._sleep(self._schedule.idle_seconds)
        else:
            self._note()

    def _resumed(self) -> Checkpoints:
        """Return the checkpoints; a candidate of this version resumes from the newest."""
        if self.journal.parent == self._parent.version.number and self.journal.next_evaluation:
            try:
                checkpoints = self._opened()
                if checkpoints.latest is not None:
                    self._candidate.state = checkpoints.restore(self._candidate.state)
                    logger.info("resuming the candidate at step %d", self._candidate.step)
                    return checkpoints
                checkpoints.close()
            except (TrainingError, OSError) as error:
                logger.warning("the candidate cannot be resumed: %s", error)
        self._forget()
        return self._opened()

    def _opened(self) -> Checkpoints:
        identity = {
            "target": self._target.fingerprint,
            "projected": self._candidate.projected,
            "shapes": [list(leaf.shape) for leaf in jax.tree.leaves(self._base)],
        }
        return Checkpoints(self._parent.recipe.settings.output, identity)

    def _forget(self) -> None:
        self.journal.begin_candidate(self._parent.version.number, self._schedule.first_evaluation)
        shutil.rmtree(self._parent.recipe.settings.output, ignore_errors=True)
