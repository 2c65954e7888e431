"""Learning waits for what is decoded; in virtual time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry, Gauge, exposition
from tests.patience import PATIENCE_SECONDS

from blockdraft_training.online import pace
from blockdraft_training.online.pace import Pace, Verifiers


class World:
    """Time that passes only while somebody sleeps, and what is decoded in it."""

    def __init__(self, busy: Callable[[float], bool]) -> None:
        self.now = 100.0
        self._busy = busy

    def pace(self, settle: float) -> Pace:
        return Pace(lambda: self._busy(self.now), settle, clock=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def never() -> bool:
    return False


def test_an_idle_service_lets_a_step_begin_at_once() -> None:
    world = World(lambda now: False)
    pace = world.pace(0.5)
    pace.wait(never)
    assert world.now == 100.0
    assert pace.waited_seconds == 0.0


def test_a_step_waits_until_nothing_was_decoded_for_a_moment() -> None:
    # Busy, a gap that is too short, busy again.
    world = World(lambda now: now < 103.0 or 103.2 < now < 104.0)
    pace = world.pace(0.5)
    pace.wait(never)
    assert 104.5 <= world.now < 104.7
    assert pace.waited_seconds == pytest.approx(world.now - 100.0)
    pace.wait(never)
    assert world.now < 104.7


def test_who_is_stopped_waits_no_longer() -> None:
    world = World(lambda now: True)
    world.pace(0.5).wait(lambda: world.now > 102.0)
    assert world.now < 102.2


@contextmanager
def metrics(registry: CollectorRegistry) -> Iterator[str]:
    handler = type(
        "Quiet",
        (exposition.MetricsHandler.factory(registry), BaseHTTPRequestHandler),
        {"log_message": lambda *_: None},
    )
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_verifiers_are_asked_for_what_they_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    registry = CollectorRegistry()
    running = Gauge("blockdraft_verifier_running_sequences", "Running.", registry=registry)
    waiting = Gauge("blockdraft_verifier_waiting_sequences", "Waiting.", registry=registry)
    Gauge("blockdraft_verifier_pages_used", "Something else.", registry=registry).set(3)
    with metrics(registry) as url:
        verifiers = Verifiers([url])
        assert not verifiers.busy()
        running.set(2)
        assert verifiers.busy()
        running.set(0)
        waiting.set(1)
        assert verifiers.busy()
        waiting.set(0)
        assert not verifiers.busy()
    # Gone: nobody decodes there.
    assert not verifiers.busy()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="'localhost:9101' is no http"):
        Verifiers(["localhost:9101"])
    assert not Verifiers([]).busy()
