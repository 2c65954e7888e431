"""The engine's choices: how far to draft, and in how many groups."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.drafting import DraftRule
from tests.verifier.engine.test_loop import oracle
from tests.verifier.support import (
    TINY_ENGINE,
    MadeUpRunner,
    decode,
    engine_over,
    link_to,
    wrong,
)

from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest


def engine_with(draft: DraftRule, **settings: Any) -> Engine:
    config = replace(TINY_ENGINE, **settings)
    return engine_over(MadeUpRunner(config), config, link_to(draft))


def test_adaptive_drafting_stops_asking_a_bad_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not what the steps of a busy machine happen to take, of which small ones may be the slower.
    monkeypatch.setattr(CostModel, "verify_seconds", lambda self, rows, tokens: float(tokens))
    request = GenerationRequest("long", (1, 2, 3), max_output_tokens=90)
    fixed = engine_with(wrong, draft_policy="fixed")
    adaptive = engine_with(wrong, draft_policy="adaptive")
    [expected] = decode(fixed, [request])
    # The first completion teaches the estimate that later requests start from.
    decode(adaptive, [request])
    [outcome] = decode(adaptive, [request])
    assert outcome.tokens == expected.tokens
    drafted = [sum(each.usage.drafted_per_position) for each in (expected, outcome)]
    assert drafted[0] > 200
    assert drafted[1] < drafted[0] / 4


def test_adaptive_drafting_goes_on_asking_a_good_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    request = GenerationRequest("long", (1, 2, 3), max_output_tokens=90)
    [expected] = decode(engine_with(wrong, draft_policy="fixed"), [request])
    right = oracle([request], [expected.tokens], 1.0)
    adaptive = engine_with(right, draft_policy="adaptive")
    # A verification of four tokens as cheap as one of one, as on an accelerator.
    monkeypatch.setattr(CostModel, "verify_seconds", lambda self, rows, tokens: 1.0)
    [outcome] = decode(adaptive, [request])
    assert outcome.tokens == expected.tokens
    usage = outcome.usage
    assert usage.verification_steps < 30
