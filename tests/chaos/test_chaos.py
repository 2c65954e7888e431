"""A small run of what `make chaos` does at length."""

import asyncio

import pytest
from tests.patience import PATIENCE_SECONDS
from tools.chaos.report import as_json
from tools.chaos.run import chaos
from tools.chaos.schedule import Fault, Kind

# What takes seconds to be noticed is left to `make chaos`: nothing hangs, so what answers late is
# only slow, and whoever killed it would add faults of his own.
QUICK = (
    Fault(20, Kind.KILL, "verifier-1"),
    Fault(40, Kind.CUT, "verifier-2-drafter"),
    Fault(60, Kind.DELAY, "server-verifier-2"),
    Fault(70, Kind.KILL, "trainer"),
    Fault(80, Kind.KILL, "drafter"),
    Fault(100, Kind.CUT, "client-server"),
    Fault(120, Kind.CUT, "server-verifier-1"),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_in_a_small_run() -> None:
    found = asyncio.run(chaos(1, 150, QUICK, 16, hang_seconds=PATIENCE_SECONDS))
    assert found.good, as_json(found)
    assert len(found.happened) == len(QUICK)
