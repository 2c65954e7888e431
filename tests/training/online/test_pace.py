"""Learning waits for what is decoded; in virtual time, and with verifiers that answer badly."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from blockdraft_training.online import pace
from blockdraft_training.online.pace import Pace, Verifiers

IDLE = "blockdraft_verifier_running_sequences 0.0\nblockdraft_verifier_waiting_sequences 0.0\n"


class World:
    """Time that passes only while somebody sleeps, and what is decoded in it."""

    def __init__(self, busy: Callable[[float], bool], settle_seconds: float = 0.5) -> None:
        self.now, self.waits = 100.0, list[float]()
        self.pace = Pace(
            lambda: busy(self.now),
            settle_seconds,
            self.waits.append,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


# 100 - (100 - 0.3) is less than 0.3.
@pytest.mark.parametrize("settle_seconds", [0.5, 0.3])
def test_an_idle_service_lets_a_step_begin_at_once(settle_seconds: float) -> None:
    world = World(lambda now: False, settle_seconds)
    world.pace.wait(lambda: False)
    assert world.now == 100.0
    assert world.waits == []


def test_a_step_waits_until_nothing_was_decoded_for_a_moment() -> None:
    # Busy, a gap that is too short, busy again.
    world = World(lambda now: now < 103.0 or 103.2 < now < 104.0)
    world.pace.wait(lambda: False)
    assert 104.5 <= world.now < 104.7
    assert sum(world.waits) == pytest.approx(world.now - 100.0)
    world.pace.wait(lambda: False)
    assert world.now < 104.7


def test_who_is_stopped_waits_no_longer() -> None:
    world = World(lambda now: True)
    world.pace.wait(lambda: world.now > 102.0)
    assert world.now < 102.2


class Answers(BaseHTTPRequestHandler):
    """Answers a request for the two gauges with what the class says."""

    status, text = 200, IDLE
    slow: threading.Event | None = None

    def do_GET(self) -> None:
        assert self.path.startswith("/metrics?name%5B%5D=blockdraft_verifier_running_sequences&")
        if self.slow is not None:
            self.slow.wait()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(**how: object) -> Iterator[tuple[Verifiers, Any]]:
    answers: Any = type("Those", (Answers,), how)
    server = HTTPServer(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Verifiers([f"http://127.0.0.1:{server.server_port}/metrics"]), answers
    finally:
        if answers.slow is not None:
            answers.slow.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("busy", ["running", "waiting"])
def test_verifiers_are_asked_for_what_they_decode(busy: str) -> None:
    with answering() as (verifiers, answers):
        assert not verifiers.busy()
        name = f"blockdraft_verifier_{busy}_sequences"
        answers.text = IDLE.replace(f"{name} 0.0", f'{name}{{priority="normal"}} 2.0')
        assert verifiers.busy()
        answers.text = IDLE
        assert not verifiers.busy()
    # Nobody listens there any more: nothing is decoded.
    assert not verifiers.busy()


@pytest.mark.parametrize(
    "how",
    [
        {"status": 500},
        {"text": ""},
        {"text": "blockdraft_verifier_running_sequences 0.0\n"},
        {"text": IDLE.replace("0.0", "none")},
    ],
)
def test_whoever_gives_no_answer_may_be_decoding(
    how: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with answering(**how) as (verifiers, answers):
        assert verifiers.busy()
        assert verifiers.busy()
        answers.status, answers.text = 200, IDLE
        assert not verifiers.busy()
    [told] = caplog.messages
    assert "learning waits" in told


def test_whoever_is_too_busy_to_answer_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_TIMEOUT_SECONDS", 0.05)
    with answering(slow=threading.Event()) as (verifiers, _):
        assert verifiers.busy()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="'localhost:9101' is not an http"):
        Verifiers(["localhost:9101"])
    assert not Verifiers([]).busy()
