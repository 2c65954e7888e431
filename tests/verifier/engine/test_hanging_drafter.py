"""A drafter that shakes hands and then never answers, as one whose device worker hangs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.verifier.support import (
    CONFIG,
    LAYER_IDS,
    TINY_ENGINE,
    MadeUpRunner,
    decode,
    engine_over,
)

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import StepResult
from blockdraft_verifier.drafting.feature_writers import FeatureWriter, MessageWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest

STEP_SECONDS = 0.01
SETTINGS = replace(TINY_ENGINE, draft_timeout_seconds=5.0)
DESCRIPTION = DrafterDescription(
    method="silent",
    block_size=4,
    features=FeatureForm(LAYER_IDS),
    feature_width=len(LAYER_IDS) * CONFIG.hidden_size,
    max_feature_rows=8,
    max_context_tokens=96,
    fingerprint="0" * 16,
    trained=True,
    step_seconds=(0.001,),
)


@dataclass
class HandClock:
    """Time that passes in steps of the target and in waits for the drafter only."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SilentTransport:
    """Takes every request and answers none; waiting for it takes the clock's time."""

    clock: HandClock
    waits: list[float]
    requests: list[pb.DraftRequest] = field(default_factory=list)
    description: DrafterDescription = DESCRIPTION
    feature_writer: FeatureWriter = field(default_factory=MessageWriter)

    def send(self, request: pb.DraftRequest) -> None:
        self.requests.append(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        if timeout_seconds:
            self.waits.append(timeout_seconds)
            self.clock.now += timeout_seconds
        return None

    def close(self) -> None:
        pass


class SilentLink:
    """Always has a new transport for one that is lost."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.waits: list[float] = []
        self.transports: list[SilentTransport] = []

    def current(self) -> DraftTransport:
        if not self.transports:
            self.transports.append(SilentTransport(self.clock, self.waits))
        return self.transports[-1]

    def lost(self, transport: DraftTransport) -> None:
        assert transport is self.transports[-1]
        self.transports.append(SilentTransport(self.clock, self.waits))

    def close(self) -> None:
        pass


class TimedRunner(MadeUpRunner):
    """Its steps take the same time each, of the clock by hand."""

    def __init__(self, clock: HandClock, step_seconds: float) -> None:
        super().__init__(SETTINGS, step_seconds)
        self.clock = clock

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        self.clock.now += self.step_seconds
        return super().run(rows, meanwhile)


@pytest.fixture
def link() -> SilentLink:
    return SilentLink(HandClock())


@pytest.fixture
def step_seconds() -> float:
    return STEP_SECONDS


@pytest.fixture(params=[1, 2])
def engine(
    link: SilentLink, step_seconds: float, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    settings = replace(SETTINGS, draft_groups=request.param)
    runner = TimedRunner(link.clock, step_seconds)
    engine = engine_over(runner, settings, link, clock=link.clock)
    yield engine
    engine.stop()


def test_it_hardly_delays_anybody(engine: Engine, link: SilentLink) -> None:
    requests = [
        GenerationRequest(f"r{index}", (1 + index, 2, 3), max_output_tokens=60)
        for index in range(8)
    ]
    expected = [outcome.tokens for outcome in decode(engine_over(MadeUpRunner()), requests)]
    assert [outcome.tokens for outcome in decode(engine, requests)] == expected
    # It is tried, waited for no longer than two steps take, and then done without.
    assert link.clock.now < SETTINGS.draft_timeout_seconds
    [wait] = link.waits
    assert wait <= max(SETTINGS.draft_patience_seconds, STEP_SECONDS)
    # Nothing piles up for it: before the deadline each sequence that runs is in one request.
    assert len(link.transports[0].requests) <= SETTINGS.scheduler.max_sequences


# Slower steps: fewer of them take as long.
@pytest.mark.parametrize("step_seconds", [2 * STEP_SECONDS])
def test_it_is_lost_and_taken_up_again_at_the_same_price(engine: Engine, link: SilentLink) -> None:
    requests = [
        GenerationRequest(f"r{index}", (1 + index, 2, 3), max_output_tokens=90)
        for index in range(30)
    ]
    decode(engine, requests)
    assert link.clock.now > 2 * SETTINGS.draft_timeout_seconds
    assert len(link.transports) > 1
    assert 1 < len(link.waits) <= len(link.transports)
    assert sum(link.waits) < 0.01 * link.clock.now
