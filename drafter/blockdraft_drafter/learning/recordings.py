"""What the drafter leaves for the trainer to learn from: a bounded ring of sequences on disk.

One file for each sequence, only for its owner to read. A file appears whole or not at all, and the
oldest ones go when the folder would hold more than its limit. The folder is all that writer and
readers share, so a reader may find that a file is gone: that is a `RecordingError` like damage.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

RAW = "raw"
"""Feature form of outputs of the target's layers, as they are."""

_FORMAT = "blockdraft-recording-1"
_NAME = re.compile(r"\d{20}\.safetensors")
_SCRATCH = ".new-"
# Nobody takes so long to write one file: whoever began it has died.
_ABANDONED_SECONDS = 600.0


class RecordingError(ValueError):
    """A file is no recording, is damaged or gone, or a recording cannot be kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One sequence.

    Attributes:
        token_ids: int32 [tokens].
        features: bfloat16 [tokens, width]; row i is of the position of token i.
        target_fingerprint: The target whose features they are.
        feature_form: `RAW`, or the fingerprint of the projection that features went through.
        layer_ids: Target layers whose outputs, side by side, were a feature before projection.
        answer_start: Position of the answer's first token; -1 if unknown.
        temperature: With which the answer's tokens were chosen.
        recorded_at: Seconds since 1970.
    """

    token_ids: NDArray[Any]
    features: NDArray[Any]
    target_fingerprint: str
    feature_form: str
    layer_ids: tuple[int, ...]
    answer_start: int = -1
    temperature: float = 0.0
    recorded_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        """Refuse what does not belong together."""
        if self.token_ids.dtype != np.int32 or self.token_ids.ndim != 1:
            raise RecordingError("token_ids must be int32 [tokens]")
        if self.features.dtype != ml_dtypes.bfloat16 or self.features.ndim != 2:
            raise RecordingError("features must be bfloat16 [tokens, width]")
        if len(self.features) != len(self.token_ids):
            raise RecordingError(f"{len(self.features)} features, {len(self.token_ids)} tokens")
        if not -1 <= self.answer_start <= len(self.token_ids):
            raise RecordingError(f"the answer cannot start at {self.answer_start}")


class Recordings:
    """The recordings in one folder.

    Any number of processes may read; one at a time should write, and with several the limit may be
    passed by what they write at the same moment.

    Attributes:
        directory: The folder.
        skipped: Files that `readable` could not read so far.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        """Use a folder, which is made when the first recording is added.

        Args:
            directory: The folder.
            limit_bytes: Most that its recordings may take.
        """
        self.directory = directory
        self.skipped = 0
        self._limit_bytes = limit_bytes
        self._last_number = 0

    def add(self, recording: Recording) -> str:
        """Keep a recording, in place of the oldest ones if there is no room.

        Returns:
            Its name; later ones sort behind it.

        Raises:
            RecordingError: If it alone takes more than the limit.
            OSError: If it cannot be written; what is there stays, but for old ones that made room.
        """
        data = _to_bytes(recording)
        if len(data) > self._limit_bytes:
            raise RecordingError(
                f"a recording of {len(data)} bytes, more than the limit of {self._limit_bytes}"
            )
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_abandoned()
        # Before it is written, so that the limit holds at any moment.
        self._make_room(len(data))
        name = self._next_name()
        scratch = self.directory / f"{_SCRATCH}{os.getpid()}-{name}"
        try:
            with open(scratch, "xb", opener=_for_owner) as file:
                file.write(data)
            scratch.replace(self.directory / name)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        return name

    def names(self) -> list[str]:
        """Return the names of all recordings, oldest first, damaged ones included."""
        try:
            return sorted(name for name in os.listdir(self.directory) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> Recording:
        """Read a recording.

        Raises:
            RecordingError: If it is damaged, foreign or gone.
        """
        path = self.directory / name
        try:
            with safe_open(path, framework="np") as file:
                told = file.metadata() or {}
                if told.get("format") != _FORMAT:
                    raise RecordingError(f"{path} is no recording")
                about = json.loads(told["recording"])
                return Recording(
                    token_ids=file.get_tensor("token_ids"),
                    features=file.get_tensor("features"),
                    target_fingerprint=str(about["target_fingerprint"]),
                    feature_form=str(about["feature_form"]),
                    layer_ids=tuple(int(each) for each in about["layer_ids"]),
                    answer_start=int(about["answer_start"]),
                    temperature=float(about["temperature"]),
                    recorded_at=float(about["recorded_at"]),
                )
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{path} cannot be read: {error}") from error

    def readable(self) -> Iterator[tuple[str, Recording]]:
        """Yield name and contents of each recording, oldest first; skip and count the damaged."""
        for name in self.names():
            try:
                recording = self.read(name)
            except RecordingError:
                self.skipped += 1
            else:
                yield name, recording

    def clear(self) -> int:
        """Delete all recordings; return how many there were."""
        names = self.names()
        for name in [*names, *self._scratch_files()]:
            (self.directory / name).unlink(missing_ok=True)
        return len(names)

    def size_bytes(self) -> int:
        """Return what all recordings take."""
        return sum(size for _, size in self._sizes())

    def _sizes(self) -> list[tuple[str, int]]:
        sizes = []
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):
                sizes.append((name, (self.directory / name).stat().st_size))
        return sizes

    def _make_room(self, size: int) -> None:
        sizes = self._sizes()
        used = sum(each for _, each in sizes)
        for name, each in sizes:
            if used + size <= self._limit_bytes:
                return
            (self.directory / name).unlink(missing_ok=True)
            used -= each

    def _next_name(self) -> str:
        # The time, so that a name is not used again after `clear`; and never the same time twice,
        # nor an earlier one when the clock was set back.
        newest = int(self.names()[-1].partition(".")[0]) if self.names() else 0
        self._last_number = max(time.time_ns(), newest + 1, self._last_number + 1)
        return f"{self._last_number:020d}.safetensors"

    def _scratch_files(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.directory) if name.startswith(_SCRATCH)]
        except FileNotFoundError:
            return []

    def _drop_abandoned(self) -> None:
        for name in self._scratch_files():
            path = self.directory / name
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()


def _to_bytes(recording: Recording) -> bytes:
    about = {
        "target_fingerprint": recording.target_fingerprint,
        "feature_form": recording.feature_form,
        "layer_ids": list(recording.layer_ids),
        "answer_start": recording.answer_start,
        "temperature": recording.temperature,
        "recorded_at": recording.recorded_at,
    }
    arrays = {
        "token_ids": np.ascontiguousarray(recording.token_ids),
        "features": np.ascontiguousarray(recording.features),
    }
    return save(arrays, metadata={"format": _FORMAT, "recording": json.dumps(about)})


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
