"""Learning while serving: recordings in, better versions of the drafter out, without an end."""

import logging
import time
from collections.abc import Callable

import numpy as np

from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.recordings import Recordings
from blockdraft_drafter.learning.versions import VersionError, VersionStore
from blockdraft_models.weights.loading import load_embedding_and_head
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.features.frozen import HotVocabulary, freeze_shared
from blockdraft_training.loop.run import activation_dtype
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.online.candidate import Candidate
from blockdraft_training.online.pace import Pace
from blockdraft_training.online.session import Session, Surroundings
from blockdraft_training.online.settings import LearnSettings
from blockdraft_training.online.start import Start, find_start
from blockdraft_training.online.traffic import Slice, Traffic

logger = logging.getLogger(__name__)


class Learner:
    """Makes candidates of one drafter, one after another."""

    def __init__(
        self,
        settings: LearnSettings,
        pace: Pace,
        stopped: Callable[[], bool],
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Load what the target shares with its drafters; `ModelError` if it cannot be loaded.

        Args:
            settings: What to do.
            pace: When to compute.
            stopped: Whether to end; asked often.
            sleep: Lets seconds pass; may end early when stopped.
        """
        self._settings = settings
        self._dtype = activation_dtype(settings.dtype)
        self._shared, self._target = load_embedding_and_head(
            resolve_target(settings.target), dtype=self._dtype
        )
        directory = settings.directory_for(self._target.fingerprint)
        self.journal = Journal.read(directory) or Journal()
        self._told = ""
        self._around = Surroundings(
            settings,
            VersionStore(directory),
            DFlashRecipe(settings.as_run(directory)),
            self.journal,
            pace,
            stopped,
            sleep,
        )

    def run(self) -> None:
        """Learn until stopped.

        Raises:
            TrainingError: If the drafter is not one that can learn.
            ModelError: If the drafter cannot be loaded.
        """
        while not self._around.stopped():
            start = self._start()
            if start is None:
                self._around.idle()
            else:
                self._learn_from(start)

    def _start(self) -> Start | None:
        """Return what to learn from; None if a version for it cannot be written, or loaded."""
        around, found = self._around, list[Start]()

        def find() -> None:
            found.append(find_start(around.store, self._settings, around.recipe, self._target))

        try:
            around.written("the first version", find)
        except VersionError as error:
            if str(error) != self._told:
                self._told = str(error)
                logger.warning("%s", error)
        return found[0] if found else None

    def _learn_from(self, start: Start) -> None:
        """Make one candidate."""
        around, settings = self._around, self._settings
        recordings = Recordings(around.store.directory / "recordings", 0)
        traffic = Traffic(recordings, start.form(self._target), settings)
        first = self._first_slice(traffic, start)
        if first is None:
            return
        vocab, draft_ids = self._target.config.vocab_size, start.drafter.draft_ids
        hot = np.arange(vocab) if draft_ids is None else draft_ids
        candidate = Candidate(
            around.recipe,
            start.drafter.model,
            freeze_shared(self._shared, HotVocabulary.with_ids(hot, vocab)),
            projected=first.projected,
            learning_rate=settings.rate(from_nothing=start.from_nothing),
            warmup_steps=settings.schedule.warmup_steps,
            dtype=self._dtype,
        )
        Session(around, start, traffic, candidate, self._target.fingerprint).run(first)

    def _first_slice(self, traffic: Traffic, start: Start) -> Slice | None:
        """Wait for something to learn from; None if another version serves or learning ends."""
        around = self._around
        while not around.stopped() and start.still_serves(around.store):
            found = traffic.next_slice()
            if found is not None:
                return found
            around.idle()
        return None
