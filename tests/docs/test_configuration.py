"""docs/configuration.md lists every flag with its default, and every variable.

The tables of commands that declare their settings are generated, see docs/generate.py.
"""

import argparse
import importlib
import re

import pytest
from docs.generate import generate
from tests.docs.pages import code, read, rows, section, sources

from blockdraft_bench import command as bench_command
from blockdraft_client.cli.main import COMMANDS
from blockdraft_training import command as train_command

PAGE = "docs/configuration.md"
GENERATED = ("serve", "server", "verifier", "drafter", "compile")
OWN_SECTION = ("demo",)
# Commands of a command, and where each is implemented.
SUBCOMMANDS = {
    f"bench {name}": subcommand.module for name, subcommand in bench_command.SUBCOMMANDS.items()
} | {"train card": train_command.SUBCOMMANDS["card"].module}
# Stated by the page in other words than the parser's value.
IN_WORDS = {"--prompt", "--compilation-cache", "--dataset"}


def flags(command: str) -> dict[str, argparse.Action]:
    """Return the actions of a command by every name they have."""
    parser = argparse.ArgumentParser()
    module = SUBCOMMANDS.get(command) or COMMANDS[command].module
    importlib.import_module(module).add_arguments(parser)
    return {
        name: action
        for action in parser._actions
        for name in action.option_strings
        if name not in ("-h", "--help")
    }


@pytest.mark.parametrize("command", [*OWN_SECTION, *SUBCOMMANDS])
def test_flags_and_defaults(command: str) -> None:
    table = rows(section(read(PAGE), f"blockdraft {command}"), 3)
    stated = {code(flag)[0]: default for flag, default, _ in table}
    actions = flags(command)
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


def test_flags_of_the_client() -> None:
    table = rows(section(read(PAGE), "Commands of the client"), 3)
    stated = {name for row in table for name in code(row[0])}
    assert stated == {
        name
        for command in COMMANDS
        if command not in (*OWN_SECTION, *GENERATED)
        for name in flags(command)
    }


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
    page = read(PAGE).replace("<!-- flags of drafter -->", "")
    with pytest.raises(ValueError, match="no table for drafter"):
        generate(page)
