"""docs/configuration.md lists every flag with its default, and every variable.

Its tables are generated, see docs/generate.py, but for those of `bench`, which are compared here.
"""

import argparse
import importlib
import re

import pytest
from docs.generate import generate, table
from tests.docs.pages import code, read, rows, section, sources

from blockdraft_bench.command import SUBCOMMANDS

PAGE = "docs/configuration.md"
# Stated by the page in other words than the parser's value.
IN_WORDS = {"--dataset"}


def declared(command: str) -> bool:
    """Return whether a command of `bench` declares its settings, so that its table is generated."""
    return hasattr(importlib.import_module(SUBCOMMANDS[command].module), "CONFIGURATION")


@pytest.mark.parametrize("command", [name for name in SUBCOMMANDS if not declared(name)])
def test_flags_and_defaults(command: str) -> None:
    table = rows(section(read(PAGE), f"blockdraft bench {command}"), 3)
    stated = {code(flag)[0]: default for flag, default, _ in table}
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(SUBCOMMANDS[command].module).add_arguments(parser)
    actions = {name: action for action in parser._actions for name in action.option_strings}
    assert set(stated) == set(actions)
    for name, action in actions.items():
        if name in IN_WORDS:
            continue
        value = action.default
        if isinstance(value, float):
            value = f"{value:g}"
        elif isinstance(value, list):
            value = " ".join(f"{item:g}" for item in value)
        # Not by a table: 0 is no False here.
        expected = "unset" if value is None else "off" if value is False else f"`{value}`"
        assert stated[name] == expected, name


def test_environment_variables() -> None:
    used = {
        name
        for path in sources()
        for name in re.findall(r"\"(BLOCKDRAFT_[A-Z_]+)\"", path.read_text("utf-8"))
    }
    table = rows(section(read(PAGE), "Environment"), 3)
    assert {code(row[0])[0] for row in table} == used


def test_generated_tables_are_current() -> None:
    assert generate(read(PAGE)) == read(PAGE)


def test_a_command_without_a_table_is_noticed() -> None:
    page = read(PAGE).replace("<!-- flags of demo -->", "")
    with pytest.raises(ValueError, match="no table for demo"):
        generate(page)


def test_a_flag_of_several_commands_is_one_row_with_their_defaults() -> None:
    lines = table(["server", "verifier", "drafter"]).splitlines()
    found = {line.split(" | ")[0]: line.split(" | ")[1:3] for line in lines}
    assert found["| `--drain-timeout`"] == ["", "`30`"]
    assert found["| `--dtype`"] == ["verifier, drafter", "`auto`"]
    assert found["| `--listen`"] == [
        "",
        "`127.0.0.1:50051`; verifier: `unix:/tmp/blockdraft-verifier.sock`; "
        "drafter: `unix:/tmp/blockdraft-drafter.sock`",
    ]
    # One name, two meanings.
    assert [line.split(" | ")[1] for line in lines if "`--drafter`" in line.split(" | ")[0]] == [
        "verifier",
        "drafter",
    ]
    assert not any("`--config`" in line.split(" | ")[0] for line in lines)
