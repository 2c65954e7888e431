"""Memory that two processes map: which users may open it, and when it goes."""

import os
import stat
from pathlib import Path

import pytest

from blockdraft_runtime.shared_memory import (
    MAPPED,
    MOST_BYTES,
    NOT_MAPPED,
    SharedFile,
    attach_offered,
    is_mapped,
    socket_folder,
)

SIZE = 8192


@pytest.fixture
def shared(tmp_path: Path) -> SharedFile:
    return SharedFile.create(tmp_path, SIZE)


def test_what_one_writes_the_other_reads(shared: SharedFile, tmp_path: Path) -> None:
    memory = attach_offered(shared.offer, tmp_path)
    assert memory is not None
    assert len(memory) == SIZE
    assert memory[:] == bytes(SIZE)
    shared.unlink()
    shared.unlink()
    assert not list(tmp_path.iterdir())
    shared.memory[100:105] = b"hello"
    assert memory[100:105] == b"hello"
    with pytest.raises(TypeError):
        memory[0] = 1


def test_only_its_user_may_open_it(shared: SharedFile) -> None:
    assert stat.S_IMODE(shared.path.stat().st_mode) == 0o600
    assert shared.path.stat().st_size == SIZE


def test_there_must_be_room(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"File too large|No space"):
        SharedFile.create(tmp_path, 1 << 60)
    assert not list(tmp_path.iterdir())


def offer(name: str, size: object) -> list[tuple[str, str]]:
    return [("shared-memory", name), ("shared-memory-bytes", str(size))]


@pytest.mark.parametrize("change", ["size", "mode", "link", "folder", "gone", "pipe"])
def test_nothing_else_is_opened(shared: SharedFile, tmp_path: Path, change: str) -> None:
    path, size = shared.path, SIZE
    if change == "size":
        size += 1
    elif change == "mode":
        path.chmod(0o640)
    elif change == "link":
        moved = path.rename(tmp_path / "elsewhere")
        path.symlink_to(moved)
    else:
        path.unlink()
        if change == "folder":
            path.mkdir(mode=0o700)
        elif change == "pipe":
            os.mkfifo(path, 0o600)
            # Opening a pipe to read from it would wait for a writer.
            os.close(os.open(path, os.O_RDWR))
    with pytest.raises((OSError, ValueError)):
        attach_offered(offer(path.name, size), tmp_path)


@pytest.mark.parametrize(
    "name", ["", "secret", "shared-", "../shared-" + "0" * 32, "shared-" + "0" * 31 + "/", "/etc"]
)
def test_only_names_of_its_own_are_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name of shared memory"):
        attach_offered(offer(name, SIZE), tmp_path)


@pytest.mark.parametrize("size", ["0", "-1", "x", "1e3", str(MOST_BYTES + 1), ""])
def test_only_sizes_within_bounds_are_mapped(tmp_path: Path, size: str) -> None:
    with pytest.raises(ValueError, match="is not mapped"):
        attach_offered(offer("shared-" + "0" * 32, size), tmp_path)


@pytest.mark.parametrize(
    "metadata", [[], [("shared-memory", "x")], [("shared-memory-bytes", "8")], [("user", "me")]]
)
def test_without_an_offer_nothing_is_mapped(
    tmp_path: Path, metadata: list[tuple[str, str]]
) -> None:
    assert attach_offered(metadata, tmp_path) is None


def test_whether_it_was_mapped_is_said() -> None:
    assert is_mapped(MAPPED)
    assert is_mapped(NOT_MAPPED) is False
    assert is_mapped(()) is None
    assert is_mapped([("shared-memory", "")]) is None


def test_a_socket_has_a_folder() -> None:
    assert socket_folder("unix:/run/blockdraft/drafter.sock") == Path("/run/blockdraft")
    assert socket_folder("localhost:50051") is None
