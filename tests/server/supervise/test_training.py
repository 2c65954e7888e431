"""What `serve --learn` says where the trainer cannot be started."""

import argparse
import logging
from pathlib import Path

import pytest
from tests.command_lines import parse

from blockdraft_server.supervise import command


def serve(*flags: str) -> int:
    return command.run(argparse.Namespace(**parse(command.CONFIGURATION, *flags)))


def test_a_missing_package_ends_the_start_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command, "_TRAINING", ("blockdraft_training", "no_such_package"))
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    caplog.set_level(logging.INFO)
    # Nor is the target looked for, which may have to be downloaded.
    missing = str(tmp_path / "no-target")
    assert serve("--learn", "--target", missing) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "--learn needs no_such_package, which is not installed: pip install 'blockdraft[train]'"
    ]
    caplog.clear()
    # Without learning, nobody asks for it.
    for flags in ((), ("--learn", "--no-drafter")):
        assert serve(*flags, "--target", missing) == 2
        assert "no_such_package" not in caplog.text
        assert missing in caplog.text
        caplog.clear()


def test_what_is_needed_is_what_is_imported() -> None:
    command._require_training()
