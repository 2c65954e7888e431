"""Steps that are compiled, timed and tested beside those that serve."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.step import StepOutputs
from blockdraft_verifier.device.step_runner import MeasuredSteps
from blockdraft_verifier.scheduling.row import Row

InTurn = Callable[[Callable[[], Any]], Any]
"""Has the thread that runs steps call a function between two of them, and returns its result."""


class GuestRunner(ModelRunner):
    """Prepares other steps over the weights and the cache of a runner that serves.

    What it runs takes turns with the steps of its host, one step in each turn.
    """

    # The steps of the host need processors too.
    _compilers = 1

    def __init__(
        self, host: ModelRunner, in_turn: InTurn, borrow: Callable[[], Sequence[int]]
    ) -> None:
        """Share what `host` has; `borrow` returns pages of the cache that nobody uses."""
        vars(self).update(vars(host))
        self._in_turn, self._borrow = in_turn, borrow
        self._pages: Sequence[int] = ()

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda count, total: None,
    ) -> MeasuredSteps:
        """Compile and time every step, then borrow pages: the cache is as if it had no others."""
        measured = super().warm_up(features, max_block, progress)
        self._pages = self._borrow()
        self.settings = replace(self.settings, num_pages=len(self._pages))
        return measured

    def run_in(self, bucket: Bucket, rows: Sequence[Row]) -> StepOutputs:
        """Run a step on the borrowed pages, in a turn; see `ModelRunner`."""
        moved_rows, run = [self._moved(row) for row in rows], super().run_in
        outputs: StepOutputs = self._in_turn(lambda: jax.block_until_ready(run(bucket, moved_rows)))
        return outputs

    def read_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        """Read borrowed pages, in a turn; see `ModelRunner`."""
        borrowed_pages, read = [self._pages[page] for page in pages], super().read_pages
        layers: list[np.ndarray] = self._in_turn(lambda: read(borrowed_pages))
        return layers

    def _moved(self, row: Row) -> Row:
        sequence = copy.copy(row.sequence)
        sequence.pages = [self._pages[page] for page in sequence.pages]
        return replace(row, sequence=sequence)

    def _run_padding(self, bucket: Bucket, context: int) -> float:
        run = super()._run_padding
        seconds: float = self._in_turn(lambda: run(bucket, context))
        return seconds
