"""What is seen of a download or a loading."""

import io
import logging
import sys
import time

import pytest

from blockdraft_models.weights.progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show_progress("Loading [x]/y") as progress:
        progress(1_000_000, 4_000_000)
        progress(4_000_000, 4_000_000)
    assert "Loading [x]/y" in terminal.getvalue()
    assert "4.0/4.0 MB" in terminal.getvalue()


def test_a_log_gets_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    caplog.set_level(logging.INFO)
    with show_progress("Loading x") as progress:
        for done in range(12):
            progress(done * 1_000_000, 12_000_000)
            now += 1.0
    assert [record.message for record in caplog.records] == [
        "Loading x: 5 of 12 MB",
        "Loading x: 10 of 12 MB",
    ]
