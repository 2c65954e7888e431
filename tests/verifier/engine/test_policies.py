"""The engine's choices: how far to draft, by what steps take."""

from dataclasses import replace
from typing import Any

from tests.fakes.drafting import DraftRule
from tests.fakes.engine import FakeRunner
from tests.verifier.engine.test_loop import oracle
from tests.verifier.support import TINY_ENGINE, decode, engine_over, link_to, wrong

from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest

LONG = GenerationRequest("long", (1, 2, 3), max_output_tokens=90)
SIZES = (1, 2, 4, 8, 16)
BY_TOKENS, FLAT = {size: float(size) for size in SIZES}, dict.fromkeys(SIZES, 1.0)


def engine_with(draft: DraftRule, policy: Any, seconds: dict[int, float]) -> Engine:
    config = replace(TINY_ENGINE, draft_policy=policy)
    return engine_over(FakeRunner(config, seconds), config, link_to(draft))


def test_adaptive_drafting_stops_asking_a_bad_drafter() -> None:
    [expected] = decode(engine_with(wrong, "fixed", BY_TOKENS), [LONG])
    adaptive = engine_with(wrong, "adaptive", BY_TOKENS)
    # The first completion teaches the estimate that later requests start from.
    decode(adaptive, [LONG])
    [outcome] = decode(adaptive, [LONG])
    assert outcome.tokens == expected.tokens
    drafted = [sum(each.usage.drafted_per_position) for each in (expected, outcome)]
    assert drafted[0] > 200
    assert drafted[1] < drafted[0] / 4


def test_adaptive_drafting_goes_on_asking_a_good_drafter() -> None:
    [expected] = decode(engine_with(wrong, "fixed", FLAT), [LONG])
    right = oracle([LONG], [expected.tokens], 1.0)
    # A verification of four tokens as cheap as one of one, as on an accelerator.
    [outcome] = decode(engine_with(right, "adaptive", FLAT), [LONG])
    assert outcome.tokens == expected.tokens
    assert outcome.usage.verification_steps < 30
