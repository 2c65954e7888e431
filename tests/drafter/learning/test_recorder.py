"""What a recorder keeps of what passes by, and that nothing stops it."""

import errno
import threading
import time
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.patience import PATIENCE_SECONDS

from blockdraft_drafter.learning import recorder as module
from blockdraft_drafter.learning.recorder import MIN_TOKENS, Origin, Recorder
from blockdraft_drafter.learning.recordings import Recording, Recordings

ORIGIN = Origin("0123456789abcdef", "raw", (1, 2))


class Counts:
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def written(self, size_bytes: int) -> None:
        self.seen["written"] += 1

    def dropped(self, cause: str) -> None:
        self.seen[cause] += 1

    def excluded(self) -> None:
        self.seen["excluded"] += 1


def features(start: int, rows: int) -> NDArray[np.generic]:
    return np.arange(2 * start, 2 * (start + rows)).reshape(rows, 2).astype(ml_dtypes.bfloat16)


def made(tmp_path: Path, share: float = 1.0) -> tuple[Recorder, Recordings, Counts]:
    counts, recordings = Counts(), Recordings(tmp_path / "recordings", 1 << 20)
    return Recorder(recordings, ORIGIN, share, counts), recordings, counts


def test_a_sequence_is_written_when_its_context_is_released(tmp_path: Path) -> None:
    recorder, recordings, counts = made(tmp_path)
    stream = recorder.stream()
    stream.begin(7, "r7", (5, 0.5))
    memory = np.array(features(0, 12))
    stream.append(7, 0, memory, range(12))
    # The verifier's again.
    memory[:] = 0
    stream.append(7, 12, features(12, 8), range(12, 20))
    stream.end(7)
    recorder.close(PATIENCE_SECONDS)
    [(_, found)] = recordings.readable()
    assert found.token_ids.tolist() == list(range(20))
    np.testing.assert_array_equal(found.features, features(0, 20))
    assert (found.answer_start, found.temperature) == (5, 0.5)
    assert (found.target_fingerprint, found.feature_form, found.layer_ids) == (
        ORIGIN.target_fingerprint,
        "raw",
        (1, 2),
    )
    assert counts.seen == {"written": 1}


def test_what_is_excluded_or_begins_anew_leaves_nothing(tmp_path: Path) -> None:
    recorder, recordings, counts = made(tmp_path)
    stream = recorder.stream()
    stream.begin(1, "r1", None)
    stream.append(1, 0, features(0, 30), range(30))
    # It was allowed at first, and is not any more.
    stream.begin(2, "r2", (0, 0.0))
    stream.append(2, 0, features(0, 30), range(30))
    stream.begin(2, "r2", None)
    stream.append(2, 0, features(0, 30), range(30))
    stream.begin(3, "r3", (0, 0.0))
    stream.append(3, 0, features(0, 30), range(30))
    stream.begin(3, "r3", (0, 0.0))
    stream.append(3, 0, features(0, 20), range(20))
    stream.close()
    recorder.close(PATIENCE_SECONDS)
    assert [len(found.token_ids) for _, found in recordings.readable()] == [20]
    assert counts.seen == {"written": 1, "excluded": 2}


def test_what_has_gaps_or_is_short_is_dropped_and_counted(tmp_path: Path) -> None:
    recorder, recordings, counts = made(tmp_path)
    stream = recorder.stream()
    for sequence_id in range(3):
        stream.begin(sequence_id, "r", (0, 0.0))
    stream.append(0, 0, features(0, 20), range(20))
    stream.append(0, 21, features(21, 1), [21])
    stream.append(1, 0, features(0, 20), ())
    stream.append(2, 0, features(0, MIN_TOKENS - 1), range(MIN_TOKENS - 1))
    stream.close()
    recorder.close(PATIENCE_SECONDS)
    assert not recordings.names()
    assert counts.seen == {"incomplete": 2, "too_short": 1}


def test_a_share_of_the_requests_is_recorded(tmp_path: Path) -> None:
    recorder, _, _ = made(tmp_path, share=0.25)
    chosen = [recorder.chooses(f"r{index}") for index in range(4000)]
    assert 850 < sum(chosen) < 1150
    assert chosen == [recorder.chooses(f"r{index}") for index in range(4000)]
    recorder.close(PATIENCE_SECONDS)


def test_a_full_disk_costs_recordings_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, recordings, counts = made(tmp_path)
    real = Recordings.add

    def full(self: Recordings, recording: Recording) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Recordings, "add", full)
    stream = recorder.stream()

    def record(sequence_id: int) -> None:
        stream.begin(sequence_id, "r", (0, 0.0))
        stream.append(sequence_id, 0, features(0, 20), range(20))
        stream.end(sequence_id)

    for sequence_id in range(3):
        record(sequence_id)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while counts.seen["disk"] < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setattr(Recordings, "add", real)
    record(4)
    recorder.close(PATIENCE_SECONDS)
    assert counts.seen == {"disk": 3, "written": 1}
    assert len(recordings.names()) == 1


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    let_go = threading.Event()
    real = Recordings.add

    def slow(self: Recordings, recording: Recording) -> str:
        let_go.wait()
        return real(self, recording)

    monkeypatch.setattr(Recordings, "add", slow)
    recorder, recordings, counts = made(tmp_path)
    stream = recorder.stream()
    for sequence_id in range(10):
        stream.begin(sequence_id, "r", (0, 0.0))
        stream.append(sequence_id, 0, features(0, 20), range(20))
        stream.end(sequence_id)
    # One is being written, or not yet; two wait.
    assert counts.seen["queue_full"] in (7, 8)
    let_go.set()
    recorder.close(PATIENCE_SECONDS)
    assert counts.seen["written"] == 10 - counts.seen["queue_full"] == len(recordings.names())
