"""A drafter that shakes hands and then never answers, as one whose device worker hangs."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.engine import FakeLink, FakeRunner, FakeTransport, virtual_engine
from tests.verifier.drafting.by_hand import DESCRIPTION
from tests.verifier.support import CONFIG, LAYER_IDS, TINY_ENGINE, decode, engine_over

from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest

STEP_SECONDS = 0.01
SETTINGS = replace(TINY_ENGINE, draft_timeout_seconds=5.0)
SILENT = replace(
    DESCRIPTION,
    features=FeatureForm(LAYER_IDS),
    feature_width=len(LAYER_IDS) * CONFIG.hidden_size,
    max_feature_rows=8,
    max_context_tokens=96,
)


def requests(count: int, tokens: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(f"r{index}", (1 + index, 2, 3), max_output_tokens=tokens)
        for index in range(count)
    ]


def beside_silence(groups: Any, step_seconds: float) -> tuple[Engine, list[FakeTransport]]:
    """Return an engine, and its transports: each that is lost has a silent successor."""
    settings = replace(SETTINGS, draft_groups=groups)
    runner = FakeRunner(settings, {16: step_seconds})
    transports: list[FakeTransport] = []

    def more() -> FakeTransport:
        transports.append(FakeTransport(SILENT, runner.clock))
        return transports[-1]

    return virtual_engine(runner, FakeLink(more(), more)), transports


@pytest.mark.parametrize("groups", [1, 2])
def test_it_hardly_delays_any_sequence(groups: int) -> None:
    engine, transports = beside_silence(groups, STEP_SECONDS)
    asked = requests(8, 60)
    expected = [outcome.tokens for outcome in decode(engine_over(FakeRunner()), asked)]
    assert [outcome.tokens for outcome in decode(engine, asked)] == expected
    # It is tried, waited for no longer than two steps take, and then done without.
    [transport] = transports
    assert transport.clock.now < SETTINGS.draft_timeout_seconds
    [wait] = transport.waits
    assert wait <= max(SETTINGS.draft_patience_seconds, STEP_SECONDS)
    # Nothing piles up for it: before the deadline each sequence that runs is in one request.
    assert len(transport.sent) <= SETTINGS.scheduler.max_sequences


@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_lost_and_taken_up_again_at_the_same_price(groups: int) -> None:
    # Slower steps: fewer of them take as long.
    engine, transports = beside_silence(groups, 2 * STEP_SECONDS)
    decode(engine, requests(30, 90))
    seconds = transports[0].clock.now
    assert seconds > 2 * SETTINGS.draft_timeout_seconds
    assert len(transports) > 1
    waits = [wait for transport in transports for wait in transport.waits]
    assert 1 < len(waits) <= len(transports)
    assert sum(waits) < 0.01 * seconds
