"""Writes the tables of docs/configuration.md from the commands themselves.

A table lies between `<!-- flags of COMMAND -->`, or several commands with commas, and the next
`<!-- end -->`; everything else on the page is written by hand. `make docs` runs this file, `make
lint` runs it with `--check`.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from blockdraft_bench import command as bench_command
from blockdraft_client.cli.main import COMMANDS
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.values import choices
from blockdraft_training import command as train_command
from blockdraft_training import learn_command

PAGE = Path(__file__).parent / "configuration.md"
MARKED = re.compile(r"(<!-- flags of ([\w ,]+) -->\n).*?(<!-- end -->)", re.S)
HEAD = "| Flag | Default | Meaning |\n|---|---|---|\n"
_GROUPS = (("bench", bench_command), ("train", train_command), ("learn", learn_command))
# A default longer than this is named, not quoted.
LONGEST_DEFAULT = 48


def modules() -> dict[str, str]:
    """Return where every command, and every command of a command, is implemented."""
    found = {name: command.module for name, command in COMMANDS.items()}
    for name, commands in _GROUPS:
        del found[name]
        found |= {f"{name} {one}": each.module for one, each in commands.SUBCOMMANDS.items()}
    return found


def generate(page: str) -> str:
    """Return the page with its tables as the commands are now.

    Raises:
        ValueError: If a command has no table.
    """
    named = [name for match in MARKED.finditer(page) for name in match[2].split(", ")]
    # Those of the benchmarks are still written by hand, where they do not declare their settings.
    wanted = {name for name in modules() if not name.startswith("bench ") or _configuration(name)}
    if missing := sorted(wanted - set(named)):
        raise ValueError(f"{PAGE.name} has no table for {', '.join(missing)}")
    return MARKED.sub(lambda match: f"{match[1]}{table(match[2].split(', '))}{match[3]}", page)


def table(commands: list[str]) -> str:
    """Return the flags of commands as a table; of a flag that several have, the first one's."""
    rows: dict[str, str] = {}
    for command in commands:
        parser = argparse.ArgumentParser()
        importlib.import_module(modules()[command]).add_arguments(parser)
        for names, default, meaning in _rows(parser, _configuration(command)):
            rows.setdefault(names, f"| {names} | {default} | {meaning} |\n")
    return HEAD + "".join(rows.values())


def _configuration(command: str) -> Configuration[Any] | None:
    found: Configuration[Any] | None
    found = getattr(importlib.import_module(modules()[command]), "CONFIGURATION", None)
    return found


def _rows(
    parser: argparse.ArgumentParser, configuration: Configuration[Any] | None
) -> Iterator[tuple[str, str, str]]:
    settings = {} if configuration is None else configuration.settings
    for action in parser._actions:
        flags = [flag for flag in action.option_strings if flag not in ("-h", "--help")]
        if not flags:
            continue
        names = ", ".join(f"`{flag}`" for flag in flags)
        setting = settings.get(flags[0].removeprefix("--"))
        if setting is None:
            switch = isinstance(action, argparse._StoreConstAction) and action.default is None
            default = "off" if switch else _default(action.default, action.required)
            yield names, default, _allowed(action.choices or ()) + _meaning(action)
        else:
            default = _default(setting.default, setting.default is MISSING)
            unit = ", in seconds" if setting.said.metavar == "SECONDS" else ""
            yield names, default, _allowed(choices(setting)) + _prose(setting.said.help) + unit


def _allowed(values: Iterable[Any]) -> str:
    """Return the only values that a flag may have, if there are such."""
    words = [f"`{value}`" for value in values]
    return f"{', '.join(words[:-1])} or {words[-1]}: " if words else ""


def _default(value: Any, required: bool) -> str:
    if required:
        return "required"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ("", (), [], ("",)):
        return "unset"
    items = value if isinstance(value, list | tuple) else [value]
    text = " ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see `--help`"


def _meaning(action: argparse.Action) -> str:
    # What the column beside it says need not be said again.
    text = re.sub(r" \(default: %\(default\)[gs]\)$", "", action.help or "")
    return _prose(text % {"default": action.default})


def _prose(text: str) -> str:
    """Return help as Markdown: what is typed is code."""
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
