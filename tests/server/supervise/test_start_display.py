"""What a terminal shows of a start: how far each process is, and of the log what matters."""

import io

from tests.patience import until
from tests.terminal import Terminal

from blockdraft_runtime.start_progress import StartProgress
from blockdraft_server.supervise.child import Output
from blockdraft_server.supervise.start_display import StartDisplay, words_of

INFO = "2026-11-25T19:43:27.747Z INFO    verifier a.b: compiled 3 of 20 steps\n"
WARNING = "2026-11-25T19:43:27.747Z WARNING verifier a.b: the disk is [full]\n"


def test_rows_and_warnings_first_and_every_line_afterwards() -> None:
    later, row = io.BytesIO(), "verifier compiling steps, 3 of 20, about 40 s"
    with Terminal(100) as terminal:
        display = StartDisplay(["drafter", "verifier"], later, terminal.file)
        output = Output(display)
        display.update("verifier", row.removeprefix("verifier "))
        until(lambda: terminal.lines == ["drafter  starting", row])
        output.write(INFO + WARNING + "Traceback: why\n")
        above = ["verifier: the disk is [full]", "Traceback: why"]
        until(lambda: terminal.lines == [*above, "drafter  starting", row])
        display.close()
        output.write(INFO)
        until(lambda: later.getvalue() == INFO.encode())
        until(lambda: terminal.lines == above)


def test_words_are_read_from_the_state_of_a_process() -> None:
    assert words_of(StartProgress().state) == "starting"
    assert words_of({"verifiers": []}) == "waiting for the verifier"
