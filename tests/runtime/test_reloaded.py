import os
from pathlib import Path

import pytest

from blockdraft_runtime.credentials import Reloaded


def number(path: Path) -> Reloaded[int]:
    return Reloaded("the number", [path], lambda: int(path.read_text()))


def test_reads_again_what_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    found = number(path)
    assert not found.refresh()
    path.write_text("22")
    assert found.refresh()
    assert found.value == 22


def test_follows_links_as_a_mounted_secret_has_them(tmp_path: Path) -> None:
    for name, text in (("old", "1"), ("new", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "number").write_text(text)
    (tmp_path / "data").symlink_to("old")
    found = number(tmp_path / "data" / "number")
    (tmp_path / "next").symlink_to("new")
    os.replace(tmp_path / "next", tmp_path / "data")
    assert found.refresh()
    assert found.value == 2


def test_a_broken_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    found = number(path)
    path.write_text("none")
    assert not found.refresh()
    assert not found.refresh()
    path.unlink()
    assert not found.refresh()
    assert found.value == 1
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2, "once for each change"
    assert all("the number: " in error and "stays in force" in error for error in errors)
    path.write_text("333")
    assert found.refresh()
    assert found.value == 333
