"""A full engine whose target, drafter and feature store move the clock, and nothing else does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.in_process import InProcessTransport
from blockdraft_bench.engine.instant_drafter import InstantRoom, instant_drafter
from blockdraft_bench.engine.instant_runner import InstantRunner
from blockdraft_bench.engine.loading import Capacity, engine_settings
from blockdraft_bench.engine.timed_link import TimedTransport
from blockdraft_bench.host.steady_engine import SteadyEngine
from blockdraft_drafter.service import LoadedMethod
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.device.runner import StepResult
from blockdraft_verifier.scheduling.scheduler import Row

SEQUENCES, WIDTH, BLOCK_SIZE = 3, 8, 4
SETTINGS = engine_settings(Capacity(SEQUENCES, 40, "float32"), BLOCK_SIZE)


@dataclass
class Clock:
    """Moves when it is told to; `rows` are those of all steps of the target."""

    now: float = 0.0
    rows: list[int] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now


class SlowRunner(InstantRunner):
    """Takes 100 s a step."""

    def __init__(self, settings: EngineSettings, clock: Clock, acceptance: float = 0.5) -> None:
        super().__init__(settings, WIDTH, acceptance, clock)
        self._moving = clock

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        self._moving.rows.append(len(rows))
        return super().run(rows, meanwhile)

    def _accepted(self, drafted: int) -> int:
        self._moving.now += 100.0
        return super()._accepted(drafted)


class SlowWire(InProcessTransport):
    """Takes 1000 s to send and to receive."""

    def __init__(self, drafter: LoadedMethod, clock: Clock) -> None:
        super().__init__(drafter)
        self._clock = clock

    def send(self, request: pb.DraftRequest) -> None:
        self._clock.now += 1000.0
        super().send(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        self._clock.now += 1000.0
        return super().receive(timeout_seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock, and stores of features that take 1 s for each write and 10 s for each read."""
    clock = Clock()
    write, read = FeatureStore.write, FeatureStore.read

    def slow_write(
        store: FeatureStore, pages: Sequence[int], start: int, features: np.ndarray
    ) -> None:
        clock.now += 1.0
        write(store, pages, start, features)

    def slow_read(
        store: FeatureStore, positions: Sequence[Positions], out: np.ndarray | None = None
    ) -> np.ndarray:
        clock.now += 10.0 * len(positions)
        return read(store, positions, out)

    monkeypatch.setattr(FeatureStore, "write", slow_write)
    monkeypatch.setattr(FeatureStore, "read", slow_read)
    return clock


def drafted(clock: Clock, settings: EngineSettings = SETTINGS) -> SteadyEngine:
    room = InstantRoom(WIDTH, BLOCK_SIZE, SEQUENCES, settings.scheduler.max_context_tokens)
    transport = TimedTransport(SlowWire(instant_drafter(room), clock), clock)
    return SteadyEngine(SlowRunner(settings, clock), settings, transport, clock)


def samples(engine: SteadyEngine, steps: int) -> set[float]:
    return {engine.step() for _ in range(steps)}


def test_only_the_engine_counts(clock: Clock) -> None:
    engine = drafted(clock)
    # Features of 3 sequences are written and read; target and drafter are left out. The steps that
    # replace sequences which have come to their end are no samples.
    assert samples(engine, 60) == {33.0}
    assert len(clock.rows) > 60
    assert max(clock.rows) == SEQUENCES
    engine.close()


def test_plain_steps_keep_no_features(clock: Clock) -> None:
    engine = SteadyEngine(SlowRunner(SETTINGS, clock), SETTINGS, None, clock)
    assert samples(engine, 60) == {0.0}
    engine.close()


def test_blocks_that_are_cut_short_end_it(clock: Clock) -> None:
    # A token of the step is left for each sequence, but not a whole block.
    limits = replace(SETTINGS.scheduler, max_step_tokens=SEQUENCES * BLOCK_SIZE - 1)
    engine = drafted(clock, replace(SETTINGS, scheduler=limits))
    with pytest.raises(BenchError, match="drafted tokens, not 9"):
        engine.step()


def test_a_sequence_that_waits_ends_it(clock: Clock) -> None:
    # Pages for one of them at full length.
    settings = replace(SETTINGS, num_pages=5)
    engine = SteadyEngine(SlowRunner(settings, clock), settings, None, clock)
    with pytest.raises(BenchError, match="left sequences out"):
        samples(engine, 40)
