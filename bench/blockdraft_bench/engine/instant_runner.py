"""A target that computes nothing: the outcomes of its steps are made up."""

import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from blockdraft_bench.engine.instant_drafter import VOCAB_SIZE
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.buckets import all_buckets
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import MeasuredSteps, StepResult
from blockdraft_verifier.device.step import FEATURE_DTYPE
from blockdraft_verifier.scheduling.scheduler import Row, RowResult

# What a step is said to take whatever its size, so that drafting whole blocks always pays.
SAID_SECONDS = 0.05


class InstantRunner:
    """A `StepRunner` whose steps accept a given number of drafted tokens on average.

    Each drafted token is accepted with the same probability if those before it were, so that an
    adaptive engine keeps drafting whole blocks.

    Attributes:
        drafted: Drafted tokens of the last step.
        seconds: What all steps so far really took.
    """

    def __init__(
        self,
        settings: EngineSettings,
        width: int,
        acceptance: float,
        clock: Callable[[], float] = time.perf_counter,
        step_seconds: float = 0.0,
    ) -> None:
        """Make up features.

        Args:
            settings: Limits of the steps.
            width: Elements of a feature, once features are captured.
            acceptance: Probability that a drafted token is accepted, given those before it.
            clock: Seconds.
            step_seconds: How long to sleep in each step.
        """
        self._settings = settings
        self._width = width
        self._acceptance = acceptance
        self._step_seconds = step_seconds
        self._clock = clock
        self._random = random.Random(0)
        self._compiled: tuple[FeatureForm, int] | None = None
        self._features = np.zeros((settings.scheduler.max_step_tokens, 0), FEATURE_DTYPE)
        self.drafted = 0
        self.seconds = 0.0

    @property
    def feature_width(self) -> int:
        """Elements of one feature; 0 when nothing is captured."""
        width: int = self._features.shape[1]
        return width

    def compiled_for(self, features: FeatureForm, max_block: int) -> bool:
        """Return whether `warm_up` was called for these features and blocks of this size."""
        return self._compiled == (features, max_block)

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> MeasuredSteps:
        """Compile nothing; return the buckets of a real runner, each with the same seconds."""
        self._compiled = features, max_block
        limits = self._settings.scheduler
        shape = limits.max_step_tokens, self._width if features.layer_ids else 0
        self._features = np.ones(shape, FEATURE_DTYPE)
        buckets = all_buckets(limits.max_sequences, limits.max_step_tokens, max_block)
        return MeasuredSteps(dict.fromkeys(buckets, SAID_SECONDS))

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        """Make up what a step over `rows` accepts and computes; see `StepRunner.run`."""
        done_at = time.perf_counter() + self._step_seconds
        meanwhile()
        started = self._clock()
        self.drafted = sum(row.draft_count for row in rows)
        results, features, first = [], [], 0
        for row in rows:
            accepted = self._accepted(row.draft_count)
            results.append(RowResult(accepted, self._random.randrange(VOCAB_SIZE)))
            # As a real runner does: neighbouring parts of one array.
            end = first + row.known_count + accepted
            features.append(self._features[first:end])
            first = end
        if self._step_seconds:
            time.sleep(max(0.0, done_at - time.perf_counter()))
        self.seconds += self._clock() - started
        return StepResult(results, features, [[] for _ in rows], SAID_SECONDS)

    def _accepted(self, drafted: int) -> int:
        count = 0
        while count < drafted and self._random.random() < self._acceptance:
            count += 1
        return count


def acceptance_for(mean: float, drafted: int) -> float:
    """Return the probability at which a step accepts `mean` of `drafted` tokens on average.

    Args:
        mean: Accepted tokens, the leading ones; 0 to `drafted`.
        drafted: Tokens of a proposal.
    """
    low, high = 0.0, 1.0
    # Halving an interval this often leaves nothing of it in double precision.
    for _ in range(60):
        middle = (low + high) / 2
        expected = sum(middle**position for position in range(1, drafted + 1))
        low, high = (middle, high) if expected < mean else (low, middle)
    return high
