"""What a terminal shows of a start: how far each process is, and of the log what matters."""

import io

from rich.console import Console
from tests.patience import until

from blockdraft_runtime.start_progress import StartProgress
from blockdraft_server.supervise.child import Output
from blockdraft_server.supervise.start_display import StartDisplay, words_of

INFO = "2026-11-25T19:43:27.747Z INFO    verifier a.b: compiled 3 of 20 steps\n"
WARNING = "2026-11-25T19:43:27.747Z WARNING verifier a.b: the disk is [full]\n"


def test_rows_and_warnings_first_and_every_line_afterwards() -> None:
    drawn, later = io.StringIO(), io.BytesIO()
    console = Console(file=drawn, force_terminal=True, width=100)
    display = StartDisplay(["drafter", "verifier"], later, console)
    output = Output(display)
    try:
        display.update("verifier", "compiling steps, 3 of 20, about 40 s")
        until(lambda: "verifier compiling steps, 3 of 20, about 40 s" in drawn.getvalue())
        output.write(INFO + WARNING + "Traceback: why\n")
        until(lambda: "Traceback: why" in drawn.getvalue())
        assert "verifier: the disk is [full]" in drawn.getvalue()
        assert "a.b" not in drawn.getvalue()
        assert "compiled 3 of 20" not in drawn.getvalue()
    finally:
        display.close()
    output.write(INFO)
    until(lambda: later.getvalue() == INFO.encode())


def test_words_are_read_from_the_state_of_a_process() -> None:
    assert words_of(StartProgress().state) == "starting"
    assert words_of({"verifiers": []}) == "waiting for the verifier"
