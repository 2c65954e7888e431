"""The progress of a start in words."""

import time

import pytest

from blockdraft_runtime.event_loop import Loading


def test_loading_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    loading = Loading()
    assert loading.words() == "starting"
    loading.report("loading weights", 1 << 20, 1 << 30)
    assert loading.words() == "loading weights"
    loading.report("compiling steps", 0, 20)
    assert loading.words() == "compiling steps, 0 of 20"
    now = 12.0
    loading.report("compiling steps", 6, 20)
    assert loading.words() == "compiling steps, 6 of 20, about 28 s to go"
