"""Which target a server serves while verifiers of one go and those of another come."""

import itertools
from dataclasses import dataclass

import pytest

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_server.routing.link import VerifierLink
from blockdraft_server.routing.pool import ServedTarget

PATIENCE_SECONDS = 10.0


@dataclass
class Clock:
    """A time that passes when told to."""

    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def target(clock: Clock) -> ServedTarget:
    return ServedTarget(PATIENCE_SECONDS, clock)


_numbers = itertools.count()


async def link(fingerprint: str, *, healthy: bool = True) -> VerifierLink:
    """Return a link that is never used, to a verifier of which this was heard."""
    made = VerifierLink(f"unix:/nowhere/{next(_numbers)}.sock")
    made.healthy = healthy
    made.description = verifier_pb2.VerifierServiceDescribeResponse(target_fingerprint=fingerprint)
    return made


async def test_the_first_that_is_healthy_decides(target: ServedTarget) -> None:
    away, first, second = await link("a", healthy=False), await link("b"), await link("a")
    target.settle([away, first, second])
    assert [target.has(each) for each in (away, first, second)] == [False, True, False]


async def test_another_waits_for_as_long_as_the_first_may_come_back(
    target: ServedTarget, clock: Clock
) -> None:
    first, other = await link("a"), await link("b")
    target.settle([first])
    clock.seconds += 1000.0
    target.settle([first, other])
    first.healthy = False
    clock.seconds += PATIENCE_SECONDS - 0.1
    target.settle([first, other])
    assert target.has(first)
    clock.seconds += 0.1
    target.settle([first, other])
    assert target.has(other)
    # The first comes back too late.
    first.healthy = True
    clock.seconds += 1000.0
    target.settle([first, other])
    assert target.has(other)


async def test_another_waits_where_the_first_may_come_back_at_another_address(
    target: ServedTarget, clock: Clock
) -> None:
    first, other = await link("a"), await link("b")
    target.settle([first])
    target.left(first)
    clock.seconds += PATIENCE_SECONDS - 0.1
    target.settle([other])
    assert target.has(first)
    clock.seconds += 0.1
    target.settle([other])
    assert target.has(other)


async def test_neither_one_that_never_served_nor_one_that_leaves_keeps_a_place(
    target: ServedTarget,
) -> None:
    target.left(await link("a"))
    leaving, staying = await link("a"), await link("b")
    leaving.leaving = True
    target.settle([leaving, staying])
    assert target.has(staying)
