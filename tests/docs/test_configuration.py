"""docs/configuration.md lists every flag with its default, and every variable."""

import argparse
import importlib
import re
from pathlib import Path

import pytest
from tests.docs.pages import code, read, rows, section, sources

from blockdraft_client.cli.main import COMMANDS

PAGE = "docs/configuration.md"
OWN_SECTION = ("serve", "server", "verifier", "drafter", "demo")
# Stated by the page in other words than the parser's value.
IN_WORDS = {"--prompt", "--verifier", "--compilation-cache"}


def flags(command: str) -> dict[str, argparse.Action]:
    """Return the actions of a command by every name they have."""
    parser = argparse.ArgumentParser()
    module = importlib.import_module(COMMANDS[command].module)
    module.add_arguments(parser)
    return {
        name: action
        for action in parser._actions
        for name in action.option_strings
        if name not in ("-h", "--help")
    }


@pytest.mark.parametrize("command", OWN_SECTION)
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
        expected = {None: "unset", False: "off"}.get(value, f"`{value}`")
        assert stated[name] == expected, name


def test_flags_of_the_client() -> None:
    table = rows(section(read(PAGE), "Commands of the client"), 3)
    stated = {name for row in table for name in code(row[0])}
    assert stated == {
        name for command in COMMANDS if command not in OWN_SECTION for name in flags(command)
    }


def test_environment_variables() -> None:
    used = {
        name
        for path in sources()
        for name in re.findall(r"\"(BLOCKDRAFT_[A-Z_]+)\"", path.read_text("utf-8"))
    }
    table = rows(section(read(PAGE), "Environment"), 3)
    assert {code(row[0])[0] for row in table} == used


def test_defaults_stated_in_words() -> None:
    page = read(PAGE)
    assert "unix:/tmp/blockdraft-verifier.sock" in page
    assert flags("server")["--verifier"].help is not None
    assert "unix:/tmp/blockdraft-verifier.sock" in str(flags("server")["--verifier"].help)
    cache = Path(str(flags("drafter")["--compilation-cache"].default))
    assert cache.name == "xla"
