"""One fingerprint for the same weights in any form; remembered, but not believed blindly."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.builders import random_decoder, shard, write_gguf
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.weights import fingerprint
from blockdraft_models.weights.fingerprint import combined, remembered_fingerprint, values_digest
from blockdraft_models.weights.loading import load_checkpoint_config


def identity(path: Path) -> str:
    return load_checkpoint_config(path).fingerprint


def test_every_weight_counts(tmp_path: Path) -> None:
    """One weight of each tensor is a little off, as after merging an adapter."""
    config = tiny_config("qwen3", attention_bias=True, num_layers=2)
    write_hf_checkpoint(random_decoder(config), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    found = {identity(tmp_path)}
    for name, weight in tensors.items():
        changed = weight.copy()
        changed.flat[-1] = np.nextafter(changed.flat[-1], np.float32(np.inf))
        save_file({**tensors, name: changed}, file)
        found.add(identity(tmp_path))
    assert len(found) == 1 + len(tensors)


def test_swapped_tensors_are_other_weights(tmp_path: Path) -> None:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    before = identity(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    gate, up = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up"))
    save_file({**tensors, gate: tensors[up], up: tensors[gate]}, file)
    assert identity(tmp_path) != before


def test_float_types_and_shards_do_not_matter(tmp_path: Path) -> None:
    """Values that all types can hold, but no two tensors of one type beside each other."""
    write_hf_checkpoint(random_decoder(tiny_config("qwen3")), tmp_path)
    file = tmp_path / "model.safetensors"
    # Eight bits are as many as bfloat16 has, and none is too small for float16.
    coarse = {
        name: np.round(weight * 64).astype(np.float32) / 64
        for name, weight in load_file(file).items()
    }
    save_file(coarse, file)
    expected = identity(tmp_path)
    types = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
    save_file({name: w.astype(types[i % 4]) for i, (name, w) in enumerate(coarse.items())}, file)
    shard(tmp_path, 3)
    assert identity(tmp_path) == expected


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Least of all those that would cut the reordered heads of a GGUF."""
    decoder = random_decoder(tiny_config())
    write_hf_checkpoint(decoder, tmp_path / "hf")
    write_gguf(decoder, tmp_path / "model.gguf")
    expected = identity(tmp_path / "hf")
    for block_bytes in (1, 300, 1000):
        monkeypatch.setattr(fingerprint, "_BLOCK_BYTES", block_bytes)
        assert identity(tmp_path / "hf") == identity(tmp_path / "model.gguf") == expected


def test_the_digest_is_of_values() -> None:
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(ml_dtypes.bfloat16)
    wide = rows.astype(np.float32)
    whole = values_digest([wide])
    assert values_digest([rows[:3], rows[3:]]) == whole
    assert values_digest([wide.astype(">f4")]) == whole
    assert values_digest([np.asfortranarray(wide)]) == whole
    assert values_digest([wide[::-1]]) != whole
    too_large, infinite = np.array([1e300], np.float64), np.array([np.inf], np.float32)
    assert values_digest([too_large]) == values_digest([infinite])


def test_the_description_counts() -> None:
    digests = [values_digest([np.ones(3)])]
    assert combined("a", digests) != combined("b", digests)
    assert len(combined("a", digests)) == 16


def test_as_many_threads_as_this_process_may_use_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: None
) -> None:
    write_hf_checkpoint(random_decoder(tiny_config()), tmp_path)
    started: list[int] = []

    def pool(threads: int) -> ThreadPoolExecutor:
        started.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr(fingerprint, "ThreadPoolExecutor", pool)
    identity(tmp_path)
    assert started == [1]


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
