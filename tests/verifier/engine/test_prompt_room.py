"""A long prompt is computed in parts that do not hold the decoding sequences up."""

from dataclasses import replace

import pytest
from tests.fakes.engine import FakeRunner
from tests.verifier.support import TINY_ENGINE, engine_over

from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPT = 40


# A step takes a second for each token of its shape.
LINEAR = {size: float(size) for size in (1, 2, 4, 8, 16)}


def parts_beside_another(slowdown: float, slope: float) -> list[int]:
    """Return how many tokens of a prompt each step computes beside a decoding sequence.

    A token of a prompt's context adds `slope` parts of what the step takes without.
    """
    settings = replace(TINY_ENGINE, prompt_slowdown=slowdown)
    slopes = {size: slope * seconds for size, seconds in LINEAR.items()}
    runner = FakeRunner(settings, LINEAR, slopes)
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
    parts = [len(row.token_ids) for _, row in runner.steps]
    assert all(len(decoding.token_ids) == 1 for decoding, _ in runner.steps)
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
