"""What is remembered of a checkpoint, and what is not believed."""

import os
from pathlib import Path

import pytest

from blockdraft_models.weights import fingerprint
from blockdraft_models.weights.fingerprint import remembered_fingerprint


class Checkpoint:
    """Two files of weights, and how often they were read."""

    def __init__(self, directory: Path) -> None:
        self.files = [directory / "a.safetensors", directory / "b.safetensors"]
        self.folder = directory / "cache" / "fingerprints"
        self.config = "{}"
        self.reads = 0
        for file in self.files:
            file.write_bytes(b"weights")

    def read(self) -> str:
        self.reads += 1
        return f"{self.reads:016x}"

    def fingerprint(self) -> str:
        return remembered_fingerprint(self.files, self.config, self.read, self.folder)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    monkeypatch.setattr(fingerprint, "_LEAST_BYTES", 10)
    return Checkpoint(tmp_path)


def test_a_checkpoint_is_read_once(checkpoint: Checkpoint) -> None:
    assert [checkpoint.fingerprint() for _ in range(3)] == ["0000000000000001"] * 3
    assert checkpoint.reads == 1
    (kept,) = checkpoint.folder.iterdir()
    assert kept.read_text() == "0000000000000001\n"


def test_small_checkpoints_leave_no_trace(checkpoint: Checkpoint) -> None:
    for file in checkpoint.files:
        file.write_bytes(b"1234")
    checkpoint.fingerprint()
    checkpoint.fingerprint()
    assert checkpoint.reads == 2
    assert not checkpoint.folder.exists()


def test_whatever_changes_is_read_again(checkpoint: Checkpoint) -> None:
    checkpoint.fingerprint()
    first, second = checkpoint.files
    first.write_bytes(b"another size")
    checkpoint.fingerprint()
    assert checkpoint.reads == 2

    times = second.stat()
    second.write_bytes(b"WEIGHTS")
    checkpoint.fingerprint()
    assert checkpoint.reads == 3
    # The same size and time of writing, as a copy that keeps times may have.
    second.write_bytes(b"wEiGhTs")
    os.utime(second, ns=(times.st_atime_ns, times.st_mtime_ns))
    checkpoint.fingerprint()
    assert checkpoint.reads == 4

    checkpoint.config = '{"rope_theta":1}'
    checkpoint.fingerprint()
    assert checkpoint.reads == 5


@pytest.mark.parametrize("content", [b"", b"0123456789abcde\n", b"0123456789abcdef", b"\xff" * 17])
def test_a_damaged_memory_is_replaced(checkpoint: Checkpoint, content: bytes) -> None:
    checkpoint.fingerprint()
    (kept,) = checkpoint.folder.iterdir()
    kept.write_bytes(content)
    assert checkpoint.fingerprint() == "0000000000000002"
    assert checkpoint.fingerprint() == "0000000000000002"


def test_a_folder_that_cannot_be_used_is_done_without(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.folder.parent.write_text("a file, not a folder")
    checkpoint.fingerprint()
    assert checkpoint.fingerprint() == "0000000000000002"
    assert "cannot keep a fingerprint" in caplog.text


def test_weights_that_change_while_they_are_read_are_not_remembered(
    checkpoint: Checkpoint,
) -> None:
    def read_and_change() -> str:
        checkpoint.files[0].write_bytes(b"longer than it was")
        return checkpoint.read()

    before = remembered_fingerprint(
        checkpoint.files, checkpoint.config, read_and_change, checkpoint.folder
    )
    assert before == "0000000000000001"
    assert checkpoint.fingerprint() == "0000000000000002"
