"""Gathers what arrives of sequences, and leaves those that end as recordings, beside the serving.

The event loop only copies features; a thread writes. What it cannot keep up with is dropped and
counted: a recording is worth less than a moment of somebody's answer.
"""

import hashlib
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.learning.recordings import Recording, RecordingError, Recordings

logger = logging.getLogger(__name__)

# Shorter ones hold nothing to learn from: a block and the features before it.
MIN_TOKENS = 16
# A disk that takes so many at once is not behind, and they are all that waits in memory.
MAX_WAITING = 16


@runtime_checkable
class RecorderCounts(Protocol):
    """Where a recorder counts; each is called on whatever thread it happens on."""

    def written(self, size_bytes: int) -> None:
        """Count a recording, given what all of them take now."""

    def dropped(self, cause: str) -> None:
        """Count a sequence that was to be recorded and is not."""

    def excluded(self) -> None:
        """Count a sequence that its caller or tenant keeps out."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What all recordings of a drafter have in common; see `Recording`."""

    target_fingerprint: str
    feature_form: str
    layer_ids: tuple[int, ...]


@dataclass(slots=True)
class _Growing:
    """A sequence that has not ended."""

    answer_start: int
    temperature: float
    token_ids: list[int] = field(default_factory=list)
    features: list[NDArray[Any]] = field(default_factory=list)


class Recorder:
    """Records sequences into one folder."""

    def __init__(
        self, recordings: Recordings, origin: Origin, share: float, counts: RecorderCounts
    ) -> None:
        """Start the thread that writes.

        Args:
            recordings: Where to.
            origin: What they have in common.
            share: Of the sequences to record, in (0, 1].
            counts: Where to count.
        """
        self._recordings = recordings
        self._origin = origin
        self._share = share
        self._counts = counts
        self._queue: queue.Queue[_Growing | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._thread.start()

    def stream(self) -> "StreamRecorder":
        """Return what records the sequences of one stream."""
        return StreamRecorder(self, self._counts)

    def chooses(self, request_id: str) -> bool:
        """Whether a request is in the share to be recorded; the same one always is or never."""
        drawn = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())
        return drawn < self._share * 2**64

    def close(self, patience_seconds: float = 5.0) -> None:
        """Write what waits, for so long, and end the thread."""
        try:
            self._queue.put(None, timeout=patience_seconds)
        except queue.Full:
            return
        self._thread.join(patience_seconds)

    def keep(self, sequence: _Growing) -> None:
        """Have a sequence written, unless too many wait for it."""
        try:
            self._queue.put_nowait(sequence)
        except queue.Full:
            self._counts.dropped("queue_full")

    def _write_all(self) -> None:
        failing = False
        while (sequence := self._queue.get()) is not None:
            try:
                self._recordings.add(self._recording(sequence))
                self._counts.written(self._recordings.size_bytes())
            except (OSError, RecordingError) as error:
                self._counts.dropped("too_large" if isinstance(error, RecordingError) else "disk")
                if not failing:
                    # Once: a full disk stays full for as many as come.
                    logger.warning("a sequence is not recorded: %s", error)
                failing = True
            except Exception:
                # Whatever it is, those that follow are to be recorded.
                self._counts.dropped("incomplete")
                logger.exception("a sequence cannot be recorded")
            else:
                failing = False

    def _recording(self, sequence: _Growing) -> Recording:
        return Recording(
            token_ids=np.array(sequence.token_ids, np.int32),
            features=np.concatenate(sequence.features),
            target_fingerprint=self._origin.target_fingerprint,
            feature_form=self._origin.feature_form,
            layer_ids=self._origin.layer_ids,
            answer_start=min(sequence.answer_start, len(sequence.token_ids)),
            temperature=sequence.temperature,
        )


class StreamRecorder:
    """Gathers the sequences of one stream. Not thread-safe: called on the event loop."""

    def __init__(self, recorder: Recorder, counts: RecorderCounts) -> None:
        """Gather for `recorder`."""
        self._recorder = recorder
        self._counts = counts
        self._growing: dict[int, _Growing] = {}

    def begin(self, sequence_id: int, request_id: str, allowed: tuple[int, float] | None) -> None:
        """A context begins; what was gathered of it before is wrong.

        Args:
            sequence_id: The sequence.
            request_id: Its request.
            allowed: Position of the answer's first token, and temperature; None if the sequence
                must not be recorded.
        """
        self._growing.pop(sequence_id, None)
        if allowed is None:
            self._counts.excluded()
        elif self._recorder.chooses(request_id):
            self._growing[sequence_id] = _Growing(*allowed)

    def append(
        self, sequence_id: int, start: int, features: NDArray[Any], token_ids: Sequence[int]
    ) -> None:
        """Positions were appended to a context.

        Args:
            sequence_id: The sequence.
            start: The first of the positions.
            features: Theirs; copied.
            token_ids: Theirs.
        """
        growing = self._growing.get(sequence_id)
        if growing is None or not len(features):
            return
        if start != len(growing.token_ids) or len(token_ids) != len(features):
            # Of another verifier, which sends no tokens; nothing can be learned from it.
            del self._growing[sequence_id]
            self._counts.dropped("incomplete")
            return
        growing.token_ids.extend(token_ids)
        growing.features.append(np.array(features))

    def end(self, sequence_id: int) -> None:
        """A context is released: what there is of it is the recording."""
        growing = self._growing.pop(sequence_id, None)
        if growing is None:
            return
        if len(growing.token_ids) < MIN_TOKENS:
            self._counts.dropped("too_short")
        else:
            self._recorder.keep(growing)

    def close(self) -> None:
        """The stream has ended, and all its sequences with it."""
        for sequence_id in list(self._growing):
            self.end(sequence_id)
