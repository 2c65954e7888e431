"""`blockdraft debug` with real processes' worth of sockets, served by a thread of this one."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.runtime.test_process import App

from blockdraft_client.cli.main import main
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.process import serve
from blockdraft_runtime.settings.process import ProcessSettings

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Serve an application at `drafter.sock` in a folder."""
    app, ready = App(internal=True), threading.Event()
    app.loaded.set()
    address = ProcessSettings(f"unix:{tmp_path / 'drafter.sock'}")
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    thread = threading.Thread(
        target=lambda: loop.run_until_complete(
            serve(app, address, stop_requested=stop, on_ready=on_ready)
        )
    )
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure_logging("drafter")
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    yield tmp_path
    loop.call_soon_threadsafe(stop.set)
    thread.join(PATIENCE_SECONDS)
    loop.close()
    root.handlers, root.level = handlers, level


def test_the_state_in_words(folder: Path, capsys: Capture) -> None:
    logging.getLogger("some.part").warning("a context was lost")
    assert main(["debug", "--run-dir", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"tester at unix:{folder / 'drafter.sock'} (process ")
    assert lines[1:-1] == [
        "  life: [register start]",
        "  parts: 2",
        "    count=3 name=a",
        "    name=b",
        "  recent faults:",
    ]
    assert lines[-1].endswith(" WARNING some.part: a context was lost")


def test_json_names_each_address_also_one_that_does_not_answer(
    folder: Path, capsys: Capture
) -> None:
    here, gone = f"unix:{folder / 'drafter.sock'}", f"unix:{folder / 'gone.sock'}"
    assert main(["debug", here, gone, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found[here]["state"]["parts"] == [{"count": 3, "name": "a"}, {"name": "b"}]
    assert found[here]["recent_faults"] == []
    assert found[gone] == {"error": "UNAVAILABLE"}
    assert main(["debug", gone]) == 1
    assert capsys.readouterr().out == f"{gone}: UNAVAILABLE\n"


def test_a_folder_without_a_service(tmp_path: Path, capsys: Capture) -> None:
    assert main(["debug", "--run-dir", str(tmp_path)]) == 1
    assert f"no sockets of a service in {tmp_path}" in capsys.readouterr().err
