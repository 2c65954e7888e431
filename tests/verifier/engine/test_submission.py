"""What the engine takes, refuses and lets go."""

from dataclasses import replace

import pytest
from tests.fakes.engine import FakeRunner
from tests.verifier.support import (
    TINY_ENGINE,
    Outcome,
    decode,
    engine_over,
    finish,
)

from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.engine.loop import Engine, QueueFullError
from blockdraft_verifier.scheduling.sequence import GenerationRequest

LIMITS = SchedulerSettings(4, 16, 96, max_waiting=2)


@pytest.fixture
def engine() -> Engine:
    return engine_over(FakeRunner(), replace(TINY_ENGINE, scheduler=LIMITS))


def test_a_full_queue_is_refused_and_replays_have_capacity_of_their_own(engine: Engine) -> None:
    new = GenerationRequest("q", (1, 2), max_output_tokens=3)
    replay = replace(new, replay=True)
    outcome = Outcome()
    # All at once, so that none of them runs yet.
    for request in (*[new] * 6, *[replay] * 6):
        engine.submit(request, outcome)
    for request in (new, replay):
        with pytest.raises(QueueFullError):
            engine.submit(request, outcome)
    finish(engine)
    assert len(outcome.tokens) == 12 * 3
    # All capacity is free again.
    assert len(decode(engine, [new] * 6)) == 6
