"""A long prompt is computed in parts that do not hold the decoding sequences up."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.verifier.support import TINY_ENGINE, MadeUpRunner, engine_over

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.executables import next_power_of_two
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.step_runner import MeasuredSteps, StepResult
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPT = 40


class LinearRunner(MadeUpRunner):
    """Says that a step takes a second for each token of its shape, and keeps what was run.

    A token of a prompt's context adds `slope` parts of what the step takes without.
    """

    def __init__(self, settings: EngineSettings, slope: float) -> None:
        super().__init__(settings)
        self.slope = slope
        self.steps: list[list[int]] = []

    def warm_up(self, *arguments: Any) -> MeasuredSteps:
        buckets = super().warm_up(*arguments).seconds
        seconds = {bucket: float(bucket.tokens) for bucket in buckets}
        return MeasuredSteps(seconds, {each: self.slope * seconds[each] for each in seconds})

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        lengths = [len(row.token_ids) for row in rows]
        self.steps.append(lengths)
        prompts = [row.start + row.known_count for row in rows if row.known_count > 1]
        longer = 1.0 + self.slope * max(prompts, default=0)
        self.step_seconds = longer * next_power_of_two(sum(lengths))
        return super().run(rows, meanwhile)


def parts_beside_another(slowdown: float, slope: float) -> list[int]:
    """Return how many tokens of a prompt each step computes beside a decoding sequence."""
    settings = replace(TINY_ENGINE, prompt_slowdown=slowdown)
    runner = LinearRunner(settings, slope)
    engine = engine_over(runner, settings)
    engine.submit(GenerationRequest("", (1, 2, 3), max_output_tokens=60), lambda event: None)
    engine.step()
    long = GenerationRequest("", tuple(range(1, PROMPT + 1)), max_output_tokens=2)
    newcomer = engine.submit(long, lambda event: None)
    # One step more may have been launched before it came.
    engine.step()
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


def test_what_context_adds_is_measured_at_warm_up(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(decoder, TINY_ENGINE)
    most = TINY_ENGINE.scheduler.max_context_tokens
    run: list[tuple[Bucket, int]] = []

    def run_padding(self: ModelRunner, bucket: Bucket, context: int) -> float:
        run.append((bucket, context))
        return bucket.rows + 0.25 * bucket.tokens * context

    monkeypatch.setattr(ModelRunner, "_run_padding", run_padding)
    monkeypatch.setattr(ModelRunner, "_compile", lambda *arguments: None)
    measured = runner.warm_up(NO_FEATURES, 1)
    first, later = run[: len(runner.buckets)], run[len(runner.buckets) :]
    timed = [bucket for bucket, context in later if context]
    # Their first runs, which take longer, are not timed; they read context as the timed ones do.
    assert sorted(first) == [(bucket, most) for bucket in runner.buckets]
    assert measured.seconds == {bucket: bucket.rows for bucket in runner.buckets}
    expected = {bucket: 0.25 * bucket.tokens for bucket in runner.buckets}
    assert measured.context_seconds == pytest.approx(expected)
    # Of each size the shape of fewest rows; others take as long.
    rows = {b.tokens: b.rows for b in sorted(runner.buckets, key=lambda b: b.rows, reverse=True)}
    assert {bucket.tokens: bucket.rows for bucket in timed} == rows
    assert len(timed) == len(rows)
    widest = runner.buckets[-1]
    assert measured.slowest(most) == pytest.approx(widest.rows + 0.25 * widest.tokens * most)
