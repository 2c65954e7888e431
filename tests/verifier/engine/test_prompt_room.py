"""A long prompt is computed in parts that do not hold the decoding sequences up."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from tests.verifier.support import CONFIG, TINY_ENGINE, tiny_decoder

from blockdraft_verifier.device.buckets import next_power_of_two
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import MeasuredSteps, ModelRunner, StepResult
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPT = 40


class LinearRunner(ModelRunner):
    """Says that a step takes a second for each token of its shape, and keeps what was run."""

    steps: list[list[int]]

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> MeasuredSteps:
        self.steps = []
        buckets = super().warm_up(features, max_block, progress).seconds
        return MeasuredSteps({bucket: float(bucket.tokens) for bucket in buckets})

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        lengths = [len(row.token_ids) for row in rows]
        self.steps.append(lengths)
        result = super().run(rows, meanwhile)
        return replace(result, seconds=float(next_power_of_two(sum(lengths))))


@pytest.mark.parametrize(("slowdown", "part"), [(1.0, 3), (2.0, 3), (8.0, 7), (100.0, 15)])
def test_a_step_takes_no_longer_than_is_allowed(slowdown: float, part: int) -> None:
    settings = replace(TINY_ENGINE, prompt_slowdown=slowdown, lookup=False)
    runner = LinearRunner(tiny_decoder(), settings)
    metrics = VerifierMetrics(CollectorRegistry())
    engine = Engine(runner, settings, None, CONFIG.vocab_size, metrics)
    engine.warm_up()
    engine.submit(GenerationRequest("", (1, 2, 3), max_output_tokens=60), lambda event: None)
    engine.step()
    long = GenerationRequest("", tuple(range(1, PROMPT + 1)), max_output_tokens=2)
    newcomer = engine.submit(long, lambda event: None)
    runner.steps.clear()
    while not newcomer.decoding:
        engine.step()
    parts = [lengths[1] for lengths in runner.steps]
    assert [lengths[0] for lengths in runner.steps] == [1] * len(parts)
    assert sum(parts) == PROMPT
    assert parts[0] == max(parts) == part
    engine.stop()
