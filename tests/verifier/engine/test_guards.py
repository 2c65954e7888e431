"""Steps that never end, and shapes that are compiled late, are noticed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.verifier.support import (
    CONFIG,
    TINY_ENGINE,
    decode,
    engine_over,
    link_to,
    random_requests,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket, all_buckets
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.guards import OVERDUE_FACTOR, RecompilationGuard, StepWatch


def test_steps_may_take_their_time_and_no_more() -> None:
    now = [0.0]
    watch = StepWatch(10.0, lambda: now[0])
    assert not watch.overdue
    with watch.step():
        now[0] += 10.0
        assert not watch.overdue
        now[0] += 1.0
        assert watch.overdue
    assert not watch.overdue


def test_slow_targets_have_longer() -> None:
    now = [0.0]
    watch = StepWatch(10.0, lambda: now[0])
    watch.expect(3.0)
    with watch.step():
        now[0] += OVERDUE_FACTOR * 3.0
        assert not watch.overdue
        now[0] += 1.0
        assert watch.overdue
    # What ends by an error has ended.
    try:
        with watch.step():
            raise RuntimeError
    except RuntimeError:
        now[0] += 1000.0
    assert not watch.overdue


ENGINE = replace(
    TINY_ENGINE,
    num_pages=16,
    scheduler=SchedulerSettings(max_sequences=2, max_step_tokens=8, max_context_tokens=64),
)
BLOCK = 4


@pytest.fixture
def heard() -> list[None]:
    return []


@pytest.fixture
def guard(heard: list[None]) -> Iterator[RecompilationGuard]:
    guard = RecompilationGuard(lambda: heard.append(None))
    yield guard
    guard.disarm()


def test_the_guard_counts_compilations_while_armed(
    guard: RecompilationGuard, heard: list[None]
) -> None:
    numbers = jnp.arange(3)
    compiled = jax.jit(lambda x: x * 3 + 1)
    jax.jit(lambda x: x * 5)(numbers)
    assert len(heard) == 0
    guard.arm()
    compiled(numbers)
    assert len(heard) == 1
    compiled(numbers)
    assert len(heard) == 1
    compiled(np.arange(4, dtype=np.int32))
    assert len(heard) == 2
    guard.disarm()
    compiled(np.arange(5, dtype=np.int32))
    assert len(heard) == 2


class RecordingRunner(ModelRunner):
    """Remembers the shapes that ran."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.used: set[Bucket] = set()

    def _execute(self, bucket: Bucket, inputs: Any, limits: Any = None) -> Any:
        self.used.add(bucket)
        return super()._execute(bucket, inputs, limits)


def test_no_step_of_any_shape_compiles_after_warm_up(
    decoder: Decoder, guard: RecompilationGuard, heard: list[None]
) -> None:
    runner = RecordingRunner(decoder, ENGINE)
    link = link_to(
        lambda position, anchor, length: [(anchor + i) % CONFIG.vocab_size for i in range(length)]
    )
    engine = engine_over(runner, ENGINE, link, guard=guard)
    assert len(heard) == 0, "warm-up may compile"
    runner.used.clear()
    buckets = set(all_buckets(2, 8, BLOCK))
    for seed in range(6):
        requests = random_requests(seed, count=6, max_output_tokens=20)
        requests = [replace(request, log_probs=2 if seed % 2 else None) for request in requests]
        decode(engine, requests[:1])
        decode(engine, requests)
        link.fault_rate = 0.1
    assert runner.used == buckets
    assert engine.metrics.preemptions._value.get() > 0
    assert link.faults
    assert len(heard) == 0
    # It was listening all the time.
    jax.jit(lambda x: x * 7)(np.arange(6, dtype=np.int32))
    assert len(heard) == 1
