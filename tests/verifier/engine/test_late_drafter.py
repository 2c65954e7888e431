"""A drafter that comes while the engine serves: its steps are prepared beside those that serve."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.fakes.drafting import ScriptedMethod, SessionLink
from tests.fakes.engine import FakeRunner
from tests.verifier.support import (
    TINY_ENGINE,
    Outcome,
    decode,
    engine_over,
    finish,
    scripted,
    value_of,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.device.guest import GuestRunner
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest
from blockdraft_verifier.self_test import enforce

SMALL = replace(
    TINY_ENGINE,
    scheduler=SchedulerSettings(max_sequences=2, max_step_tokens=8, max_context_tokens=96),
)
LONG = GenerationRequest("long", (1, 2, 3), max_output_tokens=80)


@pytest.fixture
def link() -> SessionLink:
    return SessionLink(scripted(), down=True)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Return whose steps have run, in order."""
    ran: list[type] = []
    execute = ModelRunner._execute

    def noting(self: ModelRunner, *arguments: Any) -> Any:
        ran.append(type(self))
        return execute(self, *arguments)

    monkeypatch.setattr(ModelRunner, "_execute", noting)
    return ran


def decode_until_drafted(engine: Engine) -> Iterator[Outcome]:
    """Decode one completion after another until a drafter is attached; return what was said."""
    while engine.drafter is None:
        outcome = Outcome()
        engine.submit(LONG, outcome)
        finish(engine)
        yield outcome


def test_steps_for_a_late_drafter_take_turns_with_those_that_serve(
    decoder: Decoder, link: SessionLink, ran: list[type]
) -> None:
    runner = ModelRunner(decoder, SMALL)
    engine = engine_over(
        runner,
        SMALL,
        link,
        self_test=partial(enforce, allow_inexact=False),
        guest=partial(GuestRunner, runner),
    )
    [expected] = decode(engine, [LONG])
    ran.clear()
    link.down = False
    outcomes = list(decode_until_drafted(engine))
    assert len(outcomes) > 1
    assert all(outcome.tokens == expected.tokens for outcome in outcomes)
    # One of the new steps comes between two; another where one completion follows another.
    served = [index for index, kind in enumerate(ran) if kind is ModelRunner]
    assert GuestRunner in ran
    assert max(after - before for before, after in pairwise(served)) <= 3
    assert value_of(engine.metrics.preemptions) == 0
    assert engine.exactness is not None
    assert engine.exactness.exact
    assert engine.load().used_pages == 0
    method = link.method
    assert isinstance(method, ScriptedMethod)
    known = [*LONG.prompt, *expected.tokens]
    method.draft = lambda position, anchor, length: known[position + 1 : position + 1 + length]
    [drafted] = decode(engine, [LONG])
    assert drafted.tokens == expected.tokens
    assert len(drafted.events) < len(expected.events)


def test_who_ran_before_is_decoded_plainly_and_leaves_no_pages_to_others(
    link: SessionLink,
) -> None:
    runner = FakeRunner()
    works: list[Any] = []
    engine = engine_over(runner, link=link, guest=lambda *_: FakeRunner(), spawn=works.append)
    before, outcome = replace(LONG, max_output_tokens=40), Outcome()
    engine.submit(before, outcome)
    engine.step()
    link.down = False
    while not works:
        assert engine.step()
    assert engine.drafter is None
    assert len(works) == 1
    works.pop()()
    engine.step()
    assert engine.drafter is not None
    finish(engine)
    assert len(outcome.tokens) == 40
    assert not link.method.drafted_from
    [again] = decode(engine, [before])
    assert again.tokens == outcome.tokens
    assert again.usage.cached_prompt_tokens == 0
    assert link.method.drafted_from


def test_steps_that_cannot_be_prepared_leave_the_engine_to_decode_plainly(
    link: SessionLink, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("no class is cheap enough")

    works: list[Any] = []
    guest = FakeRunner()
    guest.warm_up = fail  # type: ignore[assignment]
    engine = engine_over(FakeRunner(), link=link, guest=lambda *_: guest, spawn=works.append)
    link.down = False
    engine.step()
    works.pop()()
    [outcome] = decode(engine, [LONG])
    assert len(outcome.tokens) == 80
    assert engine.drafter is None
    assert not works, "tried again"
    assert "no drafting: there are no steps for the drafter" in caplog.text
