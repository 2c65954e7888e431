"""What a report says of the code and the machine."""

import subprocess
from pathlib import Path

import pytest

from blockdraft_bench.common.provenance import commit, origin


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Hooks set this, and git would then look elsewhere.
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    package = tmp_path / "package"
    package.mkdir()
    file = package / "__init__.py"
    file.write_text("", encoding="utf-8")
    git(tmp_path, "init")
    # In a checkout, but not of it: an installed copy.
    assert commit(package) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(package) == head
    file.write_text("changed = True\n", encoding="utf-8")
    assert commit(package) == f"{head}-dirty"


def test_origin() -> None:
    found = origin()
    assert found["command"]
    assert found["versions"]["jax"]
    assert (found["versions"]["python"] or "").startswith("3.")
    assert found["hardware"].cpu == found["hardware"].device
    assert found["hardware"].cores >= 1
    assert found["hardware"].accelerator is None
