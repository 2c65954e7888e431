"""Steps launched before the ones before them are read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import jax
import numpy as np
import pytest
from tests.fakes.engine import FakeRunner
from tests.verifier.support import (
    TINY_ENGINE,
    Outcome,
    decode,
    engine_over,
    finish,
    make_engine,
    random_requests,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import LogitsRules
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feeding import chosen_by, lower_feed, takes_chosen_tokens
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.step_runner import LaunchedStep
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest
from blockdraft_verifier.scheduling.token_masks import TokenMasks

LONG = GenerationRequest("long", tuple(range(1, 60)), max_output_tokens=20, max_draft_tokens=0)
NOT_AT_FIRST = TokenMasks(260, min_tokens=9, stop_token_ids=(3,))
DRAFTED = replace(LONG, max_draft_tokens=None)


@contextmanager
def counted() -> Iterator[list[bool]]:
    """Say of every step that a `ModelRunner` is asked to launch ahead whether it does."""
    launched: list[bool] = []
    launch: Callable[..., LaunchedStep | None] = ModelRunner.launch_ahead

    def count(runner: ModelRunner, rows: Sequence[Row]) -> LaunchedStep | None:
        step = launch(runner, rows)
        launched.append(step is not None)
        return step

    with patch.object(ModelRunner, "launch_ahead", count):
        yield launched


def one_by_one(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Decode without a step ahead."""
    with patch("blockdraft_verifier.engine.ahead.MAX_STEPS", 0):
        return decode(engine, requests)


def variety(seed: int) -> list[GenerationRequest]:
    """Return requests of all kinds that are decoded plainly."""
    rng = np.random.default_rng(seed)
    requests = []
    for request in random_requests(seed, count=6, max_output_tokens=24):
        rules = LogitsRules(
            logit_bias={int(rng.integers(0, 256)): 2.0} if rng.random() < 0.3 else {},
            repetition_penalty=1.3 if rng.random() < 0.3 else 1.0,
            presence_penalty=0.5 if rng.random() < 0.3 else 0.0,
        )
        requests.append(
            replace(
                request,
                rules=rules,
                log_probs=2 if rng.random() < 0.3 else None,
                prompt_log_probs=1 if rng.random() < 0.3 else None,
                # Of 256 tokens some end it early.
                stop_token_ids=frozenset(map(int, rng.integers(0, 256, 12))),
            )
        )
    return requests


@pytest.mark.parametrize("pages", [None, 30])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_of_steps_that_wait(
    decoder: Decoder, seed: int, pages: int | None
) -> None:
    requests = variety(seed)
    engine = make_engine(decoder, pages=pages)
    with counted() as launched:
        expected = one_by_one(engine, requests)
        assert not launched
        engine.forget_prefixes()
        outcomes = decode(engine, requests)
        assert any(launched)
    for outcome, other in zip(outcomes, expected, strict=True):
        assert outcome.tokens == other.tokens
        assert outcome.events[-1].finish_reason is other.events[-1].finish_reason
        for event, same in zip(outcome.events, other.events, strict=True):
            assert event.log_probs == same.log_probs
            assert event.prompt_log_probs == same.prompt_log_probs
    assert {outcome.events[-1].finish_reason for outcome in outcomes} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }
    assert not engine.load().used_pages
    engine.stop()


def test_a_sequence_that_is_cancelled_in_a_step_gains_nothing_more() -> None:
    runner = FakeRunner()
    engine, outcome, other = engine_over(runner), Outcome(), Outcome()
    sequence = engine.submit(LONG, outcome)
    engine.submit(replace(LONG, request_id="other"), other)
    while not outcome.tokens:
        engine.step()
    count, ahead = len(outcome.tokens), runner.ahead
    engine.cancel(sequence)
    finish(engine)
    assert len(outcome.tokens) == count
    assert runner.ahead > ahead
    assert len(other.tokens) == LONG.max_output_tokens
    assert not engine.load().used_pages


@pytest.mark.parametrize(
    ("request_", "prompt_lookup", "ahead"),
    [
        (LONG, True, True),
        (DRAFTED, False, True),
        (DRAFTED, True, False),
        (replace(DRAFTED, prompt_lookup=False), True, True),
        # Of what is chosen, a mask may depend on it.
        (replace(LONG, masks=NOT_AT_FIRST), True, False),
    ],
)
def test_what_depends_on_the_step_before_waits_for_it(
    request_: GenerationRequest, prompt_lookup: bool, ahead: bool
) -> None:
    settings = replace(TINY_ENGINE, prompt_lookup=prompt_lookup)
    runner = FakeRunner(settings)
    engine = engine_over(runner, settings)
    [outcome] = decode(engine, [replace(request_, prompt=(1, 2))])
    assert len(outcome.tokens) == LONG.max_output_tokens
    assert (runner.ahead > 0) == ahead
    engine.stop()


def test_parts_of_a_prompt_are_launched_ahead_of_drafts() -> None:
    settings = replace(TINY_ENGINE, prompt_lookup=True)
    runner = FakeRunner(settings)
    engine = engine_over(runner, settings)
    sequence = engine.submit(DRAFTED, lambda event: None)
    while not sequence.decoding:
        assert engine.step()
    assert runner.ahead == len(runner.steps) - 1 > 2
    engine.stop()


def test_chosen_tokens_take_the_places_of_their_names() -> None:
    bucket = Bucket(4, 8, 4)
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1000, 40).astype(np.int32)
    bonus = rng.integers(0, 1000, 4).astype(np.int32)
    assert not takes_chosen_tokens(words, bucket)
    words[20] = -7  # of something else
    assert not takes_chosen_tokens(words, bucket)
    fed = words.copy()
    for place, row in ((0, 3), (5, 0), (7, 2)):
        words[place], fed[place] = chosen_by(row), bonus[row]
    assert takes_chosen_tokens(words, bucket)
    feed = lower_feed(bucket, len(words), None).compile()
    np.testing.assert_array_equal(jax.device_get(feed(words, bonus)), fed)
