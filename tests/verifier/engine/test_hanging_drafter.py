"""A drafter that shakes hands and then never answers, as one whose device worker hangs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from tests.verifier.drafting.by_hand import DESCRIPTION, HandLink, HandTransport
from tests.verifier.support import (
    CONFIG,
    LAYER_IDS,
    TINY_ENGINE,
    MadeUpRunner,
    decode,
    engine_over,
)

from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.step_runner import StepResult
from blockdraft_verifier.drafting.link import DraftTransport
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.scheduler import Row
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


class SilentLink(HandLink):
    """Has a new transport, which answers nothing either, for each one that is lost."""

    def __init__(self) -> None:
        self.transports = [HandTransport(SILENT)]
        self.step_seconds = 0.0

    def clock(self) -> float:
        """Time passes in steps of the target and in waits for the drafter only."""
        return self.step_seconds + sum(self.waits)

    @property
    def waits(self) -> list[float]:
        return [wait for transport in self.transports for wait in transport.waits]

    def current(self) -> DraftTransport:
        return self.transports[-1]

    def lost(self, transport: DraftTransport) -> None:
        assert transport is self.transports[-1]
        self.transports.append(HandTransport(SILENT))


class TimedRunner(MadeUpRunner):
    """Its steps take the same time each, of the clock of a link."""

    def __init__(self, link: SilentLink, step_seconds: float) -> None:
        super().__init__(SETTINGS, step_seconds)
        self.link = link

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        self.link.step_seconds += self.step_seconds
        return super().run(rows, meanwhile)


@pytest.fixture
def link() -> SilentLink:
    return SilentLink()


@pytest.fixture
def step_seconds() -> float:
    return STEP_SECONDS


@pytest.fixture(params=[1, 2])
def engine(
    link: SilentLink, step_seconds: float, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    settings = replace(SETTINGS, draft_groups=request.param)
    runner = TimedRunner(link, step_seconds)
    engine = engine_over(runner, settings, link, clock=link.clock)
    yield engine
    engine.stop()


def test_it_hardly_delays_any_sequence(engine: Engine, link: SilentLink) -> None:
    requests = [
        GenerationRequest(f"r{index}", (1 + index, 2, 3), max_output_tokens=60)
        for index in range(8)
    ]
    expected = [outcome.tokens for outcome in decode(engine_over(MadeUpRunner()), requests)]
    assert [outcome.tokens for outcome in decode(engine, requests)] == expected
    # It is tried, waited for no longer than two steps take, and then done without.
    assert link.clock() < SETTINGS.draft_timeout_seconds
    [wait] = link.waits
    assert wait <= max(SETTINGS.draft_patience_seconds, STEP_SECONDS)
    # Nothing piles up for it: before the deadline each sequence that runs is in one request.
    assert len(link.transports[0].sent) <= SETTINGS.scheduler.max_sequences


# Slower steps: fewer of them take as long.
@pytest.mark.parametrize("step_seconds", [2 * STEP_SECONDS])
def test_it_is_lost_and_taken_up_again_at_the_same_price(engine: Engine, link: SilentLink) -> None:
    requests = [
        GenerationRequest(f"r{index}", (1 + index, 2, 3), max_output_tokens=90)
        for index in range(30)
    ]
    decode(engine, requests)
    assert link.clock() > 2 * SETTINGS.draft_timeout_seconds
    assert len(link.transports) > 1
    assert 1 < len(link.waits) <= len(link.transports)
    assert sum(link.waits) < 0.01 * link.clock()
