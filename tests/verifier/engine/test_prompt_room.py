"""A long prompt is computed in parts that do not hold the decoding sequences up."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from tests.verifier.support import CONFIG, TINY_ENGINE, tiny_decoder

from blockdraft_models.executables import next_power_of_two
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.runner import MeasuredSteps, ModelRunner, StepResult
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPT = 40


class LinearRunner(ModelRunner):
    """Says that a step takes a second for each token of its shape, and keeps what was run."""

    steps: list[list[int]]
    # What a token of a prompt's context adds, in parts of what the step takes without.
    slope = 0.0

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> MeasuredSteps:
        self.steps = []
        buckets = super().warm_up(features, max_block, progress).seconds
        seconds = {bucket: float(bucket.tokens) for bucket in buckets}
        return MeasuredSteps(seconds, {each: self.slope * seconds[each] for each in seconds})

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        lengths = [len(row.token_ids) for row in rows]
        self.steps.append(lengths)
        result = super().run(rows, meanwhile)
        prompts = [row.start + row.known_count for row in rows if row.known_count > 1]
        longer = 1.0 + self.slope * max(prompts, default=0)
        return replace(result, seconds=longer * next_power_of_two(sum(lengths)))


def parts_beside_another(slowdown: float, slope: float) -> list[int]:
    """Return how many tokens of a prompt each step computes beside a decoding sequence."""
    settings = replace(TINY_ENGINE, prompt_slowdown=slowdown, lookup=False)
    runner = LinearRunner(tiny_decoder(), settings)
    runner.slope = slope
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
    engine.stop()
    parts = [lengths[1] for lengths in runner.steps]
    assert [lengths[0] for lengths in runner.steps] == [1] * len(parts)
    assert sum(parts) == PROMPT
    return parts


@pytest.mark.parametrize(
    ("slowdown", "part"), [(1.0, 1), (2.0, 1), (4.0, 3), (8.0, 7), (100.0, 15)]
)
def test_a_step_takes_no_longer_than_is_allowed(slowdown: float, part: int) -> None:
    parts = parts_beside_another(slowdown, 0.0)
    assert parts[0] == max(parts) == part


def test_parts_become_smaller_where_context_slows_steps() -> None:
    # A step of 8 tokens takes 8 s at the start and 16 s where the prompt has 20.
    parts = parts_beside_another(13.0, 0.05)
    assert parts[0] == 7
    assert parts[-2] == 3
    assert parts[:-1] == sorted(parts[:-1], reverse=True)


def test_what_context_adds_is_measured_at_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(tiny_decoder(), TINY_ENGINE)
    most = TINY_ENGINE.scheduler.max_context_tokens
    timed: list[Bucket] = []

    def time(self: ModelRunner, bucket: Bucket, context: int) -> float:
        timed.extend([bucket] if context else [])
        return bucket.rows + 0.25 * bucket.tokens * context

    monkeypatch.setattr(ModelRunner, "_time", time)
    measured = runner.warm_up(NO_FEATURES, 1)
    assert measured.seconds == {bucket: bucket.rows for bucket in runner.buckets}
    expected = {bucket: 0.25 * bucket.tokens for bucket in runner.buckets}
    assert measured.context_seconds == pytest.approx(expected)
    # Of each size the shape of fewest rows; others take as long.
    rows = {b.tokens: b.rows for b in sorted(runner.buckets, key=lambda b: b.rows, reverse=True)}
    assert {bucket.tokens: bucket.rows for bucket in timed} == rows
    assert len(timed) == len(rows)
    widest = runner.buckets[-1]
    assert measured.slowest(most) == pytest.approx(widest.rows + 0.25 * widest.tokens * most)
