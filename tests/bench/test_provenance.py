"""What a report says of the code and the machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

from blockdraft_bench import provenance, run
from blockdraft_bench.provenance import (
    commit,
    environment,
    packages,
    source_digest,
)
from blockdraft_bench.run import Run
from blockdraft_bench.settings import OutputSettings


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package in a checkout of its own, with everything committed."""
    # Hooks set this, and git would then look elsewhere.
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / ".gitignore").write_text("installed/\n", encoding="utf-8")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return package


def test_commit(package: Path) -> None:
    head = git(package, "rev-parse", "HEAD")
    assert commit([package]) == head
    (package.parent / "notes").touch()
    (package / "__init__.pyc").touch()
    assert commit([package]) == head
    (package / "__init__.py").write_text("changed = True\n", encoding="utf-8")
    assert commit([package]) == f"{head}-dirty"
    git(package, "add", "__init__.py")
    assert commit([package]) == f"{head}-dirty"


def test_new_code_is_no_part_of_a_commit(package: Path) -> None:
    new = package / "installed" / "new.py"
    new.parent.mkdir()
    new.touch()
    # Not even where git is told to leave it alone.
    assert commit([package]) == git(package, "rev-parse", "HEAD") + "-dirty"


def test_an_installed_copy_has_no_commit(package: Path) -> None:
    copy = package.parent / "installed" / "package"
    shutil.copytree(package, copy)
    # It is in a checkout, but not of it.
    assert commit([copy]) is None
    assert commit([package, copy]) is None


def test_a_commit_in_between_is_not_what_was_measured(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "packages", lambda: [package])
    head = git(package, "rev-parse", "HEAD")
    (package / "__init__.py").write_text("changed = True\n", encoding="utf-8")
    with Run("squares", (), OutputSettings()) as begun:
        git(package, "commit", "-a", "-m", "second")
        assert begun.commit == f"{head}-dirty"


def test_all_packages_count() -> None:
    names = {package.name for package in packages()}
    assert names > {"blockdraft_models", "blockdraft_verifier", "blockdraft_drafter"}
    assert Path(provenance.__file__).parent in packages()


def test_every_source_counts_and_where_it_is(package: Path) -> None:
    before = source_digest([package])
    (package / "data.json").touch()
    assert source_digest([package]) == before
    part = package / "deep" / "part.py"
    part.parent.mkdir()
    part.touch()
    digests = {before, source_digest([package])}
    part.write_text("a = 1\n", encoding="utf-8")
    digests.add(source_digest([package]))
    part.rename(package / "part.py")
    digests.add(source_digest([package]))
    git(package, "commit", "--allow-empty", "-m", "second")
    digests.add(source_digest([package]))
    assert len(digests) == 4


def test_variables_that_decide_and_no_secrets() -> None:
    deciding = {"BLOCKDRAFT_SERVE_PROMPT_LOOKUP": "no", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "-x"}
    others = {"HOME": "/", "BLOCKDRAFT_API_KEY": "k", "JAX_TOKEN": "t", "MY_JAX_FLAG": "f"}
    assert environment({**others, **deciding}) == deciding
