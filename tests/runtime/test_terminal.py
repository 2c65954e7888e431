"""Rows that are written again and again leave nothing behind, also on a terminal that narrows."""

import io

import pytest
from tests.patience import until
from tests.terminal import Terminal

from blockdraft_runtime.terminal import TerminalRows

ROWS = ["drafter  ready", "verifier compiling steps, 3 of 12, about 160 s"]


def test_rows_are_replaced_and_lines_stay_above() -> None:
    with Terminal(80) as terminal:
        terminal.file.write("$ serve\n")
        rows = TerminalRows(terminal.file)
        rows.show(ROWS)
        rows.show(["drafter  ready", "verifier ready"])
        rows.print("a warning")
        until(
            lambda: terminal.lines == ["$ serve", "a warning", "drafter  ready", "verifier ready"]
        )
        rows.close()
        until(lambda: terminal.lines == ["$ serve", "a warning"])


@pytest.mark.parametrize("columns", [45, 44, 30, 14, 10])
def test_a_narrower_terminal_keeps_no_part_of_a_row(columns: int) -> None:
    with Terminal(100) as terminal:
        terminal.file.write("$ serve\n")
        rows = TerminalRows(terminal.file)
        rows.show(ROWS)
        until(lambda: terminal.lines == ["$ serve", *ROWS])
        terminal.resize(columns)
        rows.show(ROWS)
        until(lambda: terminal.lines == ["$ serve", *(row[: columns - 1] for row in ROWS)])
        rows.close()
        until(lambda: terminal.lines == ["$ serve"])


def test_a_terminal_that_hides_the_ends_of_lines_loses_none_above() -> None:
    with Terminal(100, breaks=False) as terminal:
        terminal.file.write("$ serve\n")
        rows = TerminalRows(terminal.file)
        rows.show(ROWS)
        until(lambda: terminal.lines == ["$ serve", *ROWS])
        terminal.resize(60)
        rows.close()
        until(lambda: terminal.lines == ["$ serve"])


def test_a_file_gets_lines_only() -> None:
    file = io.StringIO()
    rows = TerminalRows(file)
    rows.show(ROWS)
    rows.print("a warning")
    rows.close()
    assert file.getvalue() == "a warning\n"
