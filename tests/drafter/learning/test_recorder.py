"""What a recorder keeps of what passes by, in how much memory, and that nothing stops it."""

import errno
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from tests.drafter.learning.kept import closed
from tests.patience import PATIENCE_SECONDS

from blockdraft_drafter.learning import recorder as module
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.observer import StreamObserver
from blockdraft_drafter.learning.recorder import MIN_TOKENS, MOST_BYTES, PIECE_BYTES, Recorder
from blockdraft_drafter.learning.samples import SampleFile, SampleStore, TrainingSample
from blockdraft_drafter.learning.serving import ServingVersion
from blockdraft_protos.v1 import drafter_pb2

ORIGIN = {"target_fingerprint": "0123456789abcdef", "feature_form": "raw", "layer_ids": (1, 2)}
# An 8B target's projected features.
WIDTH = 4096


def features(start: int, rows: int) -> NDArray[np.generic]:
    return np.arange(2 * start, 2 * (start + rows)).reshape(rows, 2).astype(ml_dtypes.bfloat16)


class Recorded:
    """A recorder into a folder, and what came of it."""

    def __init__(self, folder: Path, share: float = 1.0, limit: int = 1 << 20) -> None:
        self.registry = CollectorRegistry()
        self.ring = SampleStore(folder / "samples", limit)
        self.recorder = Recorder(self.ring, ORIGIN, share, LearningMetrics(self.registry))

    def __call__(self, *parts: tuple[int, NDArray[Any], Any]) -> None:
        """Record a sequence of these appends."""
        growing = self.recorder.begin("r", (0, 0.0))
        for part in parts:
            growing.append(*part)
        growing.end()

    def found(self) -> list[TrainingSample]:
        closed(self.recorder)
        return [self.ring.read(name) for name in self.ring.names()]

    def counts(self) -> dict[str, float]:
        samples = [s for metric in self.registry.collect() for s in metric.samples]
        name = "blockdraft_drafter_training_samples_total"
        return {s.labels["outcome"]: s.value for s in samples if s.name == name and s.value}

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.005)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.fixture(params=[PIECE_BYTES, 1], ids=["at its end", "piece by piece"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of a sequence is written at a time."""
    monkeypatch.setattr(module, "PIECE_BYTES", request.param)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Whether the disk goes on; at first it does not."""
    goes_on, write = threading.Event(), SampleFile._write

    def slow(self: SampleFile, data: bytes) -> None:
        goes_on.wait()
        write(self, data)

    monkeypatch.setattr(SampleFile, "_write", slow)
    yield goes_on
    goes_on.set()


@pytest.mark.usefixtures("pieces")
def test_a_sequence_is_written_when_its_context_is_released(recorded: Recorded) -> None:
    growing = recorded.recorder.begin("r7", (5, 0.5))
    memory = np.array(features(0, 12))
    growing.append(0, memory, range(12))
    # The verifier's again.
    memory[:] = 0
    growing.append(12, features(12, 8), range(12, 20))
    assert not recorded.ring.names()
    growing.end()
    [found] = recorded.found()
    assert found.token_ids.tolist() == list(range(20))
    np.testing.assert_array_equal(found.features, features(0, 20))
    assert (found.completion_start, found.temperature) == (5, 0.5)
    assert found.target_fingerprint == ORIGIN["target_fingerprint"]
    assert (found.feature_form, found.layer_ids) == ("raw", (1, 2))
    assert recorded.counts() == {"written": 1}
    assert recorded.recorder.held_bytes == 0


class Listening(ServingVersion):
    """A version that only has a number, and a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.message, self.recorder = drafter_pb2.DrafterVersion(number=1), recorder


@pytest.mark.usefixtures("pieces")
def test_what_is_excluded_or_begins_anew_leaves_nothing(recorded: Recorded) -> None:
    stream = StreamObserver(Listening(recorded.recorder))

    def begin(sequence_id: int, rows: int, *, allowed: bool) -> None:
        message = drafter_pb2.SequenceDraft(sequence_id=sequence_id, request_id="r")
        message.token_ids.extend(range(rows))
        if allowed:
            message.sample.completion_start = 4
        stream.stepped(message, features(0, rows), ())

    begin(1, 30, allowed=False)
    # It was allowed at first, and is not any more.
    begin(2, 30, allowed=True)
    begin(2, 30, allowed=False)
    begin(3, 30, allowed=True)
    begin(3, 20, allowed=True)
    begin(4, 25, allowed=True)
    stream.released(4)
    stream.released(4)
    stream.close()
    assert sorted(len(found.token_ids) for found in recorded.found()) == [20, 25]
    assert recorded.counts() == {"written": 2, "excluded": 2}


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ([(0, features(0, 20), range(20)), (21, features(21, 1), [21])], "incomplete"),
        ([(0, features(0, 20), ())], "incomplete"),
        ([(0, features(0, MIN_TOKENS - 1), range(MIN_TOKENS - 1))], "too_short"),
    ],
    ids=["a gap", "no tokens", "short"],
)
@pytest.mark.usefixtures("pieces")
def test_what_has_gaps_or_is_short_is_dropped_and_counted(
    recorded: Recorded, parts: Any, cause: str
) -> None:
    recorded(*parts)
    assert recorded.found() == []
    assert recorded.counts() == {cause: 1}
    assert recorded.recorder.held_bytes == 0
    assert not recorded.ring.directory.exists() or not list(recorded.ring.directory.iterdir())


def test_what_is_too_large_costs_few_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    recorded = Recorded(tmp_path, limit=20_000)
    for _ in range(9):
        recorded((0, features(0, 20), range(20)))
    recorded(
        *((start, features(start, 20), range(start, start + 20)) for start in range(0, 900, 20))
    )
    # At most a quarter went for what was refused.
    assert len(recorded.found()) >= 5
    assert recorded.counts() == {"written": 9, "too_large": 1}


def test_what_finds_no_room_beside_others_is_not_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    recorded = Recorded(tmp_path, limit=20_000)
    begun = [recorded.recorder.begin(f"r{number}", (0, 0.0)) for number in range(8)]
    for growing in begun:
        growing.append(0, features(0, 400), range(400))
    for growing in begun:
        growing.end()
    recorded.found()
    assert recorded.counts() == {"written": 7, "queue_full": 1}


def test_a_share_of_the_requests_is_recorded(tmp_path: Path) -> None:
    recorder = Recorded(tmp_path, share=0.25).recorder
    chosen = [recorder.chooses(f"r{index}") for index in range(4000)]
    assert 850 < sum(chosen) < 1150
    assert chosen == [not recorder.begin(f"r{index}", (0, 0.0)).lost for index in range(4000)]
    closed(recorder)


@pytest.mark.parametrize(
    ("error", "cause"), [(OSError(errno.ENOSPC, "No space"), "disk"), (KeyError(), "incomplete")]
)
def test_a_full_disk_costs_samples_and_nothing_else(
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    cause: str,
) -> None:
    def refuse(self: SampleFile, data: bytes) -> None:
        raise error

    part = (0, features(0, 20), range(20))
    with monkeypatch.context() as patched:
        patched.setattr(SampleFile, "_write", refuse)
        for _ in range(3):
            recorded(part)
        recorded.until(lambda: recorded.counts().get(cause) == 3)
    recorded(part)
    assert len(recorded.found()) == 1
    assert recorded.counts() == {cause: 3, "written": 1}
    assert len(list(recorded.ring.directory.iterdir())) == 1
    assert len(caplog.messages) == (1 if cause == "disk" else 3)


def test_what_cannot_be_deleted_does_not_end_the_sample(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error")

    gap = ((0, features(0, 20), range(20)), (21, features(21, 1), [21]))
    with monkeypatch.context() as patched:
        patched.setattr(module, "PIECE_BYTES", 1)
        patched.setattr(Path, "unlink", refuse)
        recorded(*gap)
        recorded((0, features(0, 20), range(20)))
        recorded.until(lambda: recorded.counts() == {"incomplete": 1, "written": 1})
    assert len(recorded.found()) == 1
    # What stayed of the first goes as soon as it can be deleted.
    SampleStore(recorded.ring.directory, 1 << 20).make_room(1)
    assert len(list(recorded.ring.directory.iterdir())) == 1


def test_long_contexts_on_a_disk_that_does_not_answer_take_a_bounded_memory(
    tmp_path: Path, disk: threading.Event
) -> None:
    recorded = Recorded(tmp_path, limit=4 << 30)
    chunk = np.ones((128, WIDTH), ml_dtypes.bfloat16)
    tracemalloc.start()
    try:
        begun = [recorded.recorder.begin(f"r{number}", (0, 0.0)) for number in range(16)]
        # 16 sequences of 4,096 positions: 512 MiB.
        for start in range(0, 4096, len(chunk)):
            for growing in begun:
                growing.append(start, chunk, range(start, start + len(chunk)))
                assert recorded.recorder.held_bytes <= MOST_BYTES
        # Features, one piece more that is being written, and lists of token ids.
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES + (16 << 20)
    finally:
        tracemalloc.stop()
    for growing in begun:
        growing.end()
    disk.set()
    assert recorded.found() == []
    assert recorded.counts() == {"queue_full": 16}
    assert recorded.recorder.held_bytes == 0
    assert not list(recorded.ring.directory.iterdir())


def test_a_long_context_is_recorded_whole_where_the_disk_keeps_up(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, limit=1 << 30)
    growing = recorded.recorder.begin("r", (0, 0.0))
    # 96 MiB: more than may be in memory at one time.
    rows = 1024
    for start in range(0, 12 * rows, rows):
        recorded.until(lambda: recorded.recorder.held_bytes == 0)
        chunk = np.full((rows, WIDTH), start // rows, ml_dtypes.bfloat16)
        growing.append(start, chunk, range(start, start + rows))
    growing.end()
    [found] = recorded.found()
    assert found.features.shape == (12 * rows, WIDTH)
    assert (found.features[::rows, 0] == np.arange(12).astype(ml_dtypes.bfloat16)).all()
