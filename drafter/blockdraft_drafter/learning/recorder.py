"""Records sequences as training samples while the drafter serves.

The event loop only copies features; a thread writes them, a piece at a time. Features that wait for
it take at most `MOST_BYTES`; beside them are two copies of the piece that it is writing. Samples
that the disk cannot keep up with are dropped and counted, because serving must not wait for them.
"""

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.samples import (
    NoRoomError,
    SampleError,
    SampleFile,
    SampleStore,
)

logger = logging.getLogger(__name__)

# Shorter sequences hold nothing to learn from: a block and the features before it.
MIN_TOKENS = 16
# A sequence's features go to the thread whenever it has so many bytes: a write of useful size.
PIECE_BYTES = 256 << 10
# Most features in memory, of all sequences: as much as a slow disk writes in a second.
MOST_BYTES = 64 << 20
# A drafter that stops waits so long for the disk.
_CLOSE_SECONDS = 5.0


class Recorder:
    """Records sequences into one folder."""

    def __init__(
        self,
        samples: SampleStore,
        origin: Mapping[str, Any],
        share: float,
        metrics: LearningMetrics,
    ) -> None:
        """Start the thread that writes.

        All samples share the fields of `origin`; `share` of the sequences are recorded.
        """
        self.metrics = metrics
        self._samples, self._origin, self._share = samples, origin, share
        # The first is written by the event loop alone, the second by the thread alone.
        self._taken_bytes = self._left_bytes = 0
        self._failing = False
        self._queue: queue.SimpleQueue[tuple[GrowingSample, list[NDArray[Any]], bool] | None]
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._thread.start()

    @property
    def held_bytes(self) -> int:
        """The bytes that the features in memory take."""
        return self._taken_bytes - self._left_bytes

    def begin(self, request_id: str, allowed: tuple[int, float] | None) -> "GrowingSample":
        """Return a sample that gathers a sequence; it is lost at once if it is not to be recorded.

        `allowed` are the position of the completion's first token and its temperature, or None if
        the sequence must not be recorded.
        """
        growing = GrowingSample(self, *(allowed or (0, 0.0)))
        growing.lost = allowed is None or not self.chooses(request_id)
        if allowed is None:
            self.metrics.not_recorded("excluded")
        return growing

    def chooses(self, request_id: str) -> bool:
        """Return whether a request is in the share to be recorded, which follows from its id."""
        drawn = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())
        return drawn < self._share * 2**64

    def take(self, size: int) -> bool:
        """Reserve memory for `size` bytes of features; return whether there is room."""
        fits = self.held_bytes + size <= MOST_BYTES
        self._taken_bytes += size if fits else 0
        return fits

    def put(self, sequence: "GrowingSample", pieces: list[NDArray[Any]], *, end: bool) -> None:
        """Have a sequence's features written; at its `end`, a lost sample is deleted instead."""
        self._queue.put((sequence, pieces, end))

    def close(self) -> None:
        """Write the features that wait, for a while, and end the thread."""
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            sequence, pieces, end = item
            try:
                if not sequence.lost:
                    self._write(sequence, pieces, end=end)
            except (OSError, SampleError) as error:
                sequence.lost = True
                self.metrics.not_recorded(_cause(error))
                if not self._failing:
                    # Logged once: a full disk refuses every sequence that follows.
                    logger.warning("a sequence is not recorded: %s", error)
                self._failing = True
            except Exception:
                # Whatever it is, the sequences that follow are to be recorded.
                sequence.lost = True
                self.metrics.not_recorded("incomplete")
                logger.exception("a sequence cannot be recorded")
            if sequence.file is not None and (end or sequence.lost):
                sequence.file.close()
                sequence.file = None
            self._left_bytes += sum(piece.nbytes for piece in pieces)

    def _write(self, sequence: "GrowingSample", pieces: list[NDArray[Any]], *, end: bool) -> None:
        if sequence.file is None:
            sequence.file = SampleFile(self._samples)
        if pieces:
            sequence.file.append(np.concatenate(pieces))
        if not end:
            return
        sequence.file.finish(
            np.array(sequence.token_ids, np.int32),
            **self._origin,
            completion_start=min(sequence.completion_start, len(sequence.token_ids)),
            temperature=sequence.temperature,
            recorded_at=time.time(),
        )
        self._failing = False
        self.metrics.recorded(self._samples.used_bytes)


class GrowingSample:
    """The sample of a sequence that has not ended; called on the event loop."""

    def __init__(self, recorder: Recorder, completion_start: int, temperature: float) -> None:
        """Gather nothing yet."""
        self.completion_start, self.temperature = completion_start, temperature
        self.token_ids: list[int] = []
        # Whether the sample is given up; set by the event loop or by the thread.
        self.lost = False
        # The part that the thread has written.
        self.file: SampleFile | None = None
        self._recorder = recorder
        self._pieces: list[NDArray[Any]] = []
        self._bytes = 0

    def append(self, start: int, features: NDArray[Any], token_ids: Sequence[int]) -> None:
        """Copy features that were appended to the draft KV cache, of positions from `start` on."""
        if self.lost or not len(features):
            return
        if start != len(self.token_ids) or len(token_ids) != len(features):
            # From another verifier, which sends no tokens; nothing can be learned from it.
            self.drop("incomplete")
        elif not self._recorder.take(features.nbytes):
            self.drop("queue_full")
        else:
            self.token_ids.extend(token_ids)
            self._pieces.append(np.array(features))
            self._bytes += features.nbytes
            if self._bytes >= PIECE_BYTES:
                self._hand_over(end=False)

    def end(self) -> None:
        """End the sequence; its sample is kept unless it is too short."""
        if len(self.token_ids) < MIN_TOKENS and not self.lost:
            self.drop("too_short")
        else:
            self._hand_over(end=True)

    def drop(self, cause: str | None = None) -> None:
        """Delete the sample and count the cause, None if another sample replaces it."""
        self.lost = True
        if cause is not None:
            self._recorder.metrics.not_recorded(cause)
        self._hand_over(end=True)

    def _hand_over(self, *, end: bool) -> None:
        self._recorder.put(self, self._pieces, end=end)
        self._pieces, self._bytes = [], 0


def _cause(error: OSError | SampleError) -> str:
    """Return the outcome under which to count a sequence that could not be written."""
    if isinstance(error, OSError):
        return "disk"
    return "queue_full" if isinstance(error, NoRoomError) else "too_large"
