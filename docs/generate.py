"""Writes the tables of docs/configuration.md from the commands themselves.

A table lies between `<!-- flags of COMMAND -->`, or several commands with commas, and the next
`<!-- end -->`; `beyond COMMAND` leaves out what that command has too. Everything else on the page
is written by hand. Commands that neither serve nor call a service have no table; their `--help`
lists their flags. `make docs` runs this file, `make lint` runs it with `--check`.
"""

import argparse
import functools
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from blockdraft_client.cli.main import COMMANDS
from blockdraft_runtime.configuration.command import Configuration

PAGE = Path(__file__).parent / "configuration.md"
WITHOUT_TABLE = ("demo", "keys", "train", "learn", "compile", "bench", "debug", "completion")
MARKED = re.compile(r"(<!-- flags of ([\w, ]+?)(?: beyond (\w+))? -->\n).*?(<!-- end -->)", re.S)
# The flags of every command; the page names them once.
_EVERYWHERE = ("-h", "--help", "--help-all", "--config")
# A default longer than this is named, not quoted.
LONGEST_DEFAULT = 48


@functools.cache
def implemented() -> dict[str, Any]:
    """Return the module that adds the flags of each command, by its name."""
    return {
        name: importlib.import_module(command.module)
        for name, command in COMMANDS.items()
        if name not in WITHOUT_TABLE
    }


def generate(page: str) -> str:
    """Return the page with its tables as the commands are now.

    Raises:
        ValueError: If a command has no table.
    """
    named = {name for match in MARKED.finditer(page) for name in match[2].split(", ")}
    if missing := sorted(implemented().keys() - named):
        raise ValueError(f"{PAGE.name} has no table for {', '.join(missing)}")

    def marked(match: re.Match[str]) -> str:
        return f"{match[1]}{table(match[2].split(', '), match[3])}{match[4]}"

    return MARKED.sub(marked, page)


@dataclass
class FlagRow:
    """A flag with one meaning, and its default for each command that has it."""

    names: str
    meaning: str
    defaults: dict[str, str]


def table(commands: list[str], beyond: str | None = None) -> str:
    """Return the flags of commands, but for those of one, as a table.

    If a flag is not one of all commands, the table says of which it is.
    """
    rows: list[FlagRow] = []
    left_out = {(row.names, row.meaning) for row in _rows(beyond)} if beyond else set()
    for command in commands:
        for new in _rows(command):
            if (new.names, new.meaning) in left_out:
                continue
            same = (row for row in rows if (row.names, row.meaning) == (new.names, new.meaning))
            old = next(same, None)
            if old is None:
                rows.append(new)
            else:
                old.defaults |= new.defaults
    if not any(_owners(row, commands) for row in rows):
        lines = (f"| {row.names} | {_defaults(row)} | {row.meaning} |\n" for row in rows)
        return "| Flag | Default | Meaning |\n|---|---|---|\n" + "".join(lines)
    lines = (
        f"| {row.names} | {_owners(row, commands)} | {_defaults(row)} | {row.meaning} |\n"
        for row in rows
    )
    return "| Flag | Of | Default | Meaning |\n|---|---|---|---|\n" + "".join(lines)


def _owners(row: FlagRow, commands: list[str]) -> str:
    """Return the commands that have a flag, if not all do.

    `serve` has what the processes have that it starts, and `hosted` is two of them.
    """
    if len(row.defaults) == len(commands):
        return ""
    owners = list(row.defaults)
    if "serve" in commands and owners != ["serve"]:
        processes = [command for command in owners if command not in ("serve", "hosted")]
        return ("" if "serve" in owners else "only ") + ", ".join(processes)
    return ", ".join(owners)


def _defaults(row: FlagRow) -> str:
    """Return the commonest default, then each other one with the commands that have it."""
    by_value: dict[str, list[str]] = {}
    for command, value in row.defaults.items():
        by_value.setdefault(value, []).append(command)
    ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
    exceptions = [f"{', '.join(names)}: {value}" for value, names in ordered[1:]]
    return "; ".join(filter(None, [ordered[0][0], *exceptions]))


def _configuration(command: str) -> Configuration[Any] | None:
    configuration: Configuration[Any] | None
    configuration = getattr(implemented()[command], "CONFIGURATION", None)
    return configuration


def _rows(command: str) -> Iterator[FlagRow]:
    parser = argparse.ArgumentParser()
    configuration = _configuration(command)
    implemented()[command].add_arguments(parser)
    settings = {} if configuration is None else configuration.settings
    for action in parser._actions:
        flags = [flag for flag in action.option_strings if flag not in _EVERYWHERE]
        setting = settings.get(flags[0].removeprefix("--")) if flags else None
        if not flags or (setting is None and action.help is argparse.SUPPRESS):
            continue
        names = ", ".join(f"`{flag}`" for flag in flags)
        if setting is None:
            default = _default(action.default, action.required)
            meaning = _allowed(action.choices or ()) + _meaning(action)
        else:
            default = _default(setting.default, setting.default is MISSING)
            unit = ", in seconds" if setting.metavar == "SECONDS" else ""
            meaning = _allowed(setting.choices) + _prose(setting.declaration.help) + unit
        yield FlagRow(names, meaning, {command: default})


def _allowed(values: Iterable[Any]) -> str:
    """Return the only values that a flag may have, if it is limited to some."""
    words = [f"`{value}`" for value in values]
    return f"{', '.join(words[:-1])} or {words[-1]}: " if words else ""


def _default(value: Any, required: bool) -> str:
    if required:
        return "required"
    if isinstance(value, bool):
        return "on" if value else ""
    if value is None or value in ("", (), [], ("",)):
        return ""
    items = value if isinstance(value, list | tuple) else [value]
    text = " ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see `--help`"


def _meaning(action: argparse.Action) -> str:
    # The default has a column of its own.
    text = re.sub(r" \(default: %\(default\)[gs]\)$", "", action.help or "")
    return _prose(text % {"default": action.default})


def _prose(text: str) -> str:
    """Return help as Markdown, with flags and variables as code."""
    text = re.sub(r"(?<![\w`])(--[a-z][a-z0-9-]*|\$?[A-Z]+_[A-Z_]+)", r"`\1`", text)
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> int:
    """Write the page, or with `--check` say whether it is current; return the exit code."""
    old = PAGE.read_text("utf-8")
    new = generate(old)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(new, "utf-8")
        return 0
    if new != old:
        print(f"{PAGE.name} is not what the commands say: make docs", file=sys.stderr)
        return 1
    print(f"{PAGE.name} is current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
