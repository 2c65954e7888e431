"""The target as the engine runs it: steps, what they gave, and what they take."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from blockdraft_models.diffusion import Diffusion
from blockdraft_protos.v1.inference_pb2 import TokenLogProbs
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.scheduling.row import Row, RowResult


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Seconds of steps, measured before the first request."""

    seconds: dict[Bucket, float]  # of a step in each bucket that reads no context
    # Added by each token of context that all tokens of such a step read.
    context_seconds: dict[Bucket, float] = field(default_factory=dict)

    def without(self, buckets: Collection[Bucket]) -> "MeasuredSteps":
        """Return the measurements of the other buckets."""
        rest = [bucket for bucket in self.seconds if bucket not in buckets]
        context = {bucket: self.context_seconds[bucket] for bucket in rest if self.context_seconds}
        return MeasuredSteps({bucket: self.seconds[bucket] for bucket in rest}, context)

    def slowest(self, context: int) -> float:
        """Return the seconds of the longest step at a context of so many tokens; 0 for none."""
        slopes = self.context_seconds
        sums = (base + context * slopes.get(bucket, 0.0) for bucket, base in self.seconds.items())
        return max(sums, default=0.0)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results of a step, row by row.

    `features` are those of final positions. `log_probs` has an entry per gained token, if wanted;
    `prompt_log_probs` one per token of the prompt that follows a token of a scored row.
    """

    rows: list[RowResult]
    features: list[np.ndarray]
    log_probs: list[list[TokenLogProbs]]
    seconds: float
    prompt_log_probs: list[list[TokenLogProbs]] = field(default_factory=list)

    def of_rows(self, indices: Sequence[int]) -> "StepResult":
        """Return the results of some rows only."""
        if len(indices) == len(self.rows):
            return self
        return StepResult(
            [self.rows[i] for i in indices],
            [self.features[i] for i in indices],
            [self.log_probs[i] for i in indices],
            self.seconds,
            [self.prompt_log_probs[i] for i in indices] if self.prompt_log_probs else [],
        )


LaunchedStep = Callable[[Callable[[], None]], StepResult]
"""Waits for a step that was launched, having called a function first, and returns its results."""


@runtime_checkable
class StepRunner(Protocol):
    """The target as the engine runs it. `ModelRunner` computes; a measurement may make it up."""

    @property
    def diffusion(self) -> Diffusion | None:
        """How the target denoises; None if it decodes token after token."""

    @property
    def feature_width(self) -> int:
        """Elements of one feature; 0 when nothing is captured."""

    def compiled_for(self, features: FeatureForm, max_block: int) -> bool:
        """Return whether `warm_up` was called for these features and blocks of this size."""

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda count, total: None,
    ) -> MeasuredSteps:
        """Prepare every step; return the seconds of each."""

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        """Run one step over `rows`, and call `meanwhile` once while the target computes."""

    def launch_ahead(self, rows: Sequence[Row]) -> LaunchedStep | None:
        """Launch a step over `rows` after the last, which need not have been read.

        Tokens may be `chosen_by` rows of the last step. None if this step has another shape.
        """

    def take_steps(self, runner: Any) -> None:
        """Take over the steps of another runner, warmed up over the same target."""
