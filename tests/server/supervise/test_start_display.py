"""What a terminal shows of a start: how far each process is, and of the log what matters."""

import io

import pytest
from rich.console import Console
from tests.patience import until

from blockdraft_server.supervise.child import Output
from blockdraft_server.supervise.start_display import Stage, StartDisplay, stage_of

INFO = "2026-11-25T19:43:27.747Z INFO    verifier a.b: compiled 3 of 20 steps\n"
WARNING = "2026-11-25T19:43:27.747Z WARNING verifier a.b: the disk is [full]\n"


def test_bars_and_warnings_first_and_every_line_afterwards() -> None:
    drawn, later = io.StringIO(), io.BytesIO()
    console = Console(file=drawn, force_terminal=True, width=100)
    display = StartDisplay(["drafter", "verifier"], later, console)
    output = Output(display)
    try:
        display.update("verifier", Stage("compiling steps", 3, 20))
        display.update("drafter", Stage("loading weights", 50_000_000, 93_000_000))
        until(lambda: "3/20" in drawn.getvalue())
        assert "loading weights" in drawn.getvalue()
        # Bytes are no count that a person reads.
        assert "50000000" not in drawn.getvalue()
        # A stage whose length is not known has no count left of the one before.
        display.update("verifier", Stage("waiting for the drafter"))
        until(lambda: "waiting for the drafter" in drawn.getvalue())
        assert [task.total for task in display._progress.tasks] == [93_000_000, None]
        output.write(INFO + WARNING + "Traceback: why\n")
        until(lambda: "Traceback: why" in drawn.getvalue())
        assert "verifier: the disk is [full]" in drawn.getvalue()
        assert "a.b" not in drawn.getvalue()
        assert "compiled 3 of 20" not in drawn.getvalue()
    finally:
        display.close()
    output.write(INFO)
    until(lambda: later.getvalue() == INFO.encode())


@pytest.mark.parametrize(
    ("state", "stage"),
    [
        ({"stage": "compiling steps", "done": 3.0, "total": 20.0}, Stage("compiling steps", 3, 20)),
        ({"stage": "starting"}, Stage("starting")),
        ({"verifiers": []}, Stage("waiting for the verifier")),
    ],
)
def test_a_stage_is_read_from_the_state_of_a_process(
    state: dict[str, object], stage: Stage
) -> None:
    assert stage_of(state) == stage
