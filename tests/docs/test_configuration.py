"""docs/configuration.md lists every flag with its default, and every variable.

Its tables are generated, see docs/generate.py.
"""

import re

import pytest
from docs.generate import generate, table
from tests.docs.pages import code, read, rows, section, sources

PAGE = "docs/configuration.md"


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
    page = read(PAGE).replace("<!-- flags of generate, chat beyond models -->", "")
    with pytest.raises(ValueError, match="no table for chat, generate"):
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


def test_serve_has_the_flags_of_the_processes_that_it_starts() -> None:
    lines = table(["serve", "server", "verifier", "drafter", "hosted"]).splitlines()
    found = {line.split(" | ")[0]: line.split(" | ")[1:3] for line in lines}
    assert found["| `--run-dir`"] == ["serve", ""]
    assert found["| `--max-sequences`"] == ["verifier, drafter", "`16`"]
    assert found["| `--process-id`"] == ["only verifier", ""]
    assert found["| `--log-level`"] == ["", "`info`"]


def test_a_table_leaves_out_what_another_command_has() -> None:
    lines = table(["generate", "chat"], beyond="models").splitlines()
    found = {line.split(" | ")[0] for line in lines}
    assert {"| `--chat`", "| `--priority`"} <= found
    assert not {"| `--address`", "| `--json`"} & found
