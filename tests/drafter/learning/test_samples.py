"""The ring of samples on disk."""

import errno
import itertools
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.drafter.learning.kept import Kept, sample

from blockdraft_drafter.learning import samples as module
from blockdraft_drafter.learning.samples import (
    NoRoomError,
    SampleError,
    SampleFile,
    SampleStore,
)


def test_what_is_read_is_what_was_added(tmp_path: Path) -> None:
    ring = Kept(tmp_path / "samples", 1 << 20)
    added = sample(temperature=0.7, recorded_at=12.5)
    found = Kept(tmp_path / "samples", 1 << 20).read(ring.add(added))
    np.testing.assert_array_equal(found.token_ids, added.token_ids)
    np.testing.assert_array_equal(found.features.view(np.uint16), added.features.view(np.uint16))
    assert found.features.dtype == ml_dtypes.bfloat16
    for name in (
        "target_fingerprint",
        "feature_form",
        "layer_ids",
        "completion_start",
        "temperature",
    ):
        assert getattr(found, name) == getattr(added, name)
    assert found.recorded_at == 12.5


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    ring = Kept(tmp_path / "samples", 1 << 20)
    name = ring.add(sample())
    assert ring.directory.stat().st_mode & 0o777 == 0o700
    assert (ring.directory / name).stat().st_mode & 0o777 == 0o600


def test_the_oldest_go_and_the_limit_always_holds(tmp_path: Path) -> None:
    one = Kept(tmp_path / "one", 1 << 20)
    one.add(sample())
    size = one.size_bytes()
    assert size == sum(path.stat().st_size for path in one.directory.iterdir())
    ring = Kept(tmp_path / "ring", 5 * size + size // 2)
    added = []
    for seed in range(10):
        added.append(ring.add(sample(seed)))
        assert ring.size_bytes() <= 5 * size + size // 2
        assert ring.names() == added[-5:]
    assert [ring.read(name).token_ids.tolist() for name in ring.names()] == [
        sample(seed).token_ids.tolist() for seed in range(5, 10)
    ]


def test_what_is_being_written_counts(tmp_path: Path) -> None:
    ring = Kept(tmp_path, 12_000)
    for seed in range(3):
        ring.add(sample(seed))
    piece = np.zeros((80, 10), ml_dtypes.bfloat16)
    files = [SampleFile(ring) for _ in range(5)]
    for file in files[:4]:
        file.append(piece)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 12_000
    assert ring.names() == []
    with pytest.raises(NoRoomError):
        files[4].append(piece)
    # The lock of its writer keeps what is written from the sweep, however old it is.
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    with pytest.raises(NoRoomError):
        ring.make_room(12_000)
    assert ring.clear() == 0
    assert len(os.listdir(tmp_path)) == 5
    for file in files:
        file.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("samples", [0, 60], ids=["empty", "full"])
def test_many_pieces_look_into_the_folder_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    monkeypatch.setattr(module, "_SCAN_SECONDS", 1e9)
    ring = Kept(tmp_path, 1_000_000)
    for seed in range(samples):
        ring.add(sample(seed, tokens=1000))
    scans, sizes = itertools.count(), SampleStore._sizes

    def counted(self: SampleStore) -> dict[str, int]:
        next(scans)
        return sizes(self)

    monkeypatch.setattr(SampleStore, "_sizes", counted)
    with closing(SampleFile(ring)) as file:
        for _ in range(50):
            file.append(np.zeros((10, 10), ml_dtypes.bfloat16))
    assert next(scans) <= 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1_000_000


def test_one_larger_than_a_quarter_of_the_limit_is_refused(tmp_path: Path) -> None:
    ring = Kept(tmp_path, 40_000)
    name = ring.add(sample())
    with pytest.raises(SampleError, match="more than 10000"):
        ring.add(sample(tokens=500))
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(SampleError, match="header"):
        ring.add(sample(layer_ids=tuple(range(300))))
    assert os.listdir(tmp_path) == [name]


def test_the_damaged_and_the_foreign_are_no_samples(tmp_path: Path) -> None:
    ring = Kept(tmp_path, 1 << 20)
    cut, good, empty, foreign = (ring.add(sample(seed)) for seed in range(4))
    (tmp_path / cut).write_bytes((tmp_path / cut).read_bytes()[:-7])
    (tmp_path / empty).write_bytes(b"")
    (tmp_path / foreign).write_bytes(b"\x10\0\0\0\0\0\0\0" + b'{"x":[1,2,3]}   ')
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / ".new-1-2").write_text("half")
    assert ring.names() == [cut, good, empty, foreign]
    ring.read(good)
    for name in (cut, empty, foreign, "99999999999999999999.safetensors"):
        with pytest.raises(SampleError):
            ring.read(name)


def test_what_its_writer_left_when_it_died_goes(tmp_path: Path) -> None:
    (tmp_path / ".new-1-1").write_text("half")
    kept = Kept(tmp_path, 1 << 20).add(sample())
    assert os.listdir(tmp_path) == [kept]


def test_clear_leaves_nothing_of_ours_and_names_are_not_used_again(tmp_path: Path) -> None:
    ring = Kept(tmp_path, 1 << 20)
    before = [ring.add(sample(seed)) for seed in range(3)]
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / ".new-1-2").write_text("half")
    assert ring.clear() == 3
    assert os.listdir(tmp_path) == ["notes.txt"]
    assert Kept(tmp_path, 1 << 20).add(sample()) > max(before)


def test_a_clock_that_is_set_back_makes_no_sample_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Kept(tmp_path, 1 << 20)
    before = ring.add(sample())
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    assert ring.add(sample()) > before


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Kept(tmp_path, 1 << 20)
    kept = ring.add(sample())

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            ring.add(sample())
    assert os.listdir(tmp_path) == [kept]
    ring.add(sample())


@pytest.mark.parametrize(
    "changes",
    [
        {"features": np.zeros((19, 6), ml_dtypes.bfloat16)},
        {"features": np.zeros((20, 6), np.float32)},
        {"token_ids": np.zeros(20, np.int64)},
        {"completion_start": 21},
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SampleError):
        sample(**changes)
