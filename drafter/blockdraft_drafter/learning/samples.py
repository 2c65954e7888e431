"""Training samples, which the drafter writes and the trainer reads: a bounded ring on disk.

A training sample is one recorded sequence, in one safetensors file that only its owner can read. A
file is written a piece at a time under another name, locked by its writer, and appears whole or not
at all. The oldest files are deleted when the folder would hold more than its limit. Writer and
readers share nothing but the folder, so a reader may find that a file is gone: that is a
`SampleError` like damage.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from blockdraft_drafter.learning.records import SCRATCH

RAW = "raw"
"""Feature form of outputs of the target's layers, as they are."""

_FORMAT = "blockdraft-sample-1"
_NAME = re.compile(r"\d{20}\.safetensors")
# Space for the header, which is written last, when the lengths are known.
_HEADER_BYTES = 1024
# One sample may take at most this fraction of the limit (one in four), to leave the others space.
_LARGEST_PART = 4
_SCAN_SECONDS = 1.0


class SampleError(ValueError):
    """A file is not a training sample, is damaged or gone, or a sample cannot be kept."""


class NoRoomError(SampleError):
    """The samples that are being written take the whole limit."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One recorded sequence."""

    token_ids: NDArray[Any]  # int32 [tokens]
    features: NDArray[Any]  # bfloat16 [tokens, width]; row i is of the position of token i
    target_fingerprint: str  # the target that computed the features
    feature_form: str  # `RAW`, or the fingerprint of the projection that features went through
    # Target layers whose outputs, side by side, were a feature before projection.
    layer_ids: tuple[int, ...]
    completion_start: int = -1  # position of the completion's first token; -1 if unknown
    temperature: float = 0.0  # with which the completion's tokens were chosen
    recorded_at: float = field(default_factory=time.time)  # seconds since 1970

    def __post_init__(self) -> None:
        """Refuse fields that do not belong together."""
        if self.token_ids.dtype != np.int32 or self.token_ids.ndim != 1:
            raise SampleError("token_ids must be int32 [tokens]")
        if self.features.dtype != ml_dtypes.bfloat16 or self.features.ndim != 2:
            raise SampleError("features must be bfloat16 [tokens, width]")
        if len(self.features) != len(self.token_ids):
            raise SampleError(f"{len(self.features)} features, {len(self.token_ids)} tokens")
        if not -1 <= self.completion_start <= len(self.token_ids):
            raise SampleError(f"the completion cannot start at {self.completion_start}")


class SampleStore:
    """The training samples in one folder, which is created with the first one.

    Any number of processes may read. One at a time should write: several may exceed the limit by
    what they write within a second.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        """Use a folder whose samples take at most so many bytes."""
        self.directory, self.limit_bytes = directory, limit_bytes
        # When the folder was last scanned; the bytes in it and its newest sample, then or since.
        self._scanned_at = -math.inf
        self.used_bytes = self._newest = 0

    def names(self) -> list[str]:
        """Return the names of all samples, oldest first, damaged ones included."""
        return sorted(name for name in self._sizes() if _NAME.fullmatch(name))

    def read(self, name: str) -> TrainingSample:
        """Read a sample; raises SampleError if it is damaged, foreign or gone."""
        path = self.directory / name
        try:
            with safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise SampleError(f"{path} is not a training sample")
                about = json.loads(metadata["sample"])
                return TrainingSample(
                    token_ids=file.get_tensor("token_ids"),
                    features=file.get_tensor("features"),
                    target_fingerprint=str(about["target_fingerprint"]),
                    feature_form=str(about["feature_form"]),
                    layer_ids=tuple(int(layer_id) for layer_id in about["layer_ids"]),
                    completion_start=int(about["completion_start"]),
                    temperature=float(about["temperature"]),
                    recorded_at=float(about["recorded_at"]),
                )
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SampleError(f"{path} cannot be read: {error}") from error

    def clear(self) -> int:
        """Delete all samples but those that are being written; return their number."""
        sizes = self._sizes()
        names = [name for name in sizes if _NAME.fullmatch(name)]
        for name in names:
            (self.directory / name).unlink(missing_ok=True)
        self._delete_abandoned(sizes)
        return len(names)

    def size_bytes(self) -> int:
        """Return the bytes that all samples take."""
        return sum(size for name, size in self._sizes().items() if _NAME.fullmatch(name))

    def make_room(self, size: int) -> None:
        """Delete the oldest samples until `size` bytes fit, which will be written now.

        Scanning a folder of many files takes milliseconds, so it is done once a second, and
        whenever the bytes known to have been written reach the limit. Raises NoRoomError if the
        samples that are being written leave too little.
        """
        now = time.monotonic()
        if now > self._scanned_at + _SCAN_SECONDS or self.used_bytes + size > self.limit_bytes:
            # A little more than needed, so that a full ring is not scanned each time.
            self._sweep(self.limit_bytes - size - self.limit_bytes // 64)
            self._scanned_at = now
        if self.used_bytes + size > self.limit_bytes:
            raise NoRoomError(f"no space for {size} bytes beside the samples being written")
        self.used_bytes += size

    def next_name(self) -> str:
        """Return a name that sorts after those of all samples.

        It is the time, so that it is not used again after `clear`. If the clock was set back, it is
        one more than the newest name.
        """
        self._newest = max(time.time_ns(), self._newest + 1)
        return f"{self._newest:020d}.safetensors"

    def _sweep(self, limit_bytes: int) -> None:
        """Delete unfinished files of dead writers, and the oldest samples beyond a limit."""
        sizes = self._sizes()
        self._delete_abandoned(sizes)
        self.used_bytes = sum(sizes.values())
        names = sorted(name for name in sizes if _NAME.fullmatch(name))
        if names:
            self._newest = max(self._newest, int(names[-1].partition(".")[0]))
        for name in names:
            if self.used_bytes <= limit_bytes:
                break
            (self.directory / name).unlink(missing_ok=True)
            self.used_bytes -= sizes[name]

    def _delete_abandoned(self, sizes: dict[str, int]) -> None:
        """Delete the unfinished files of dead writers, here and from `sizes`.

        The kernel frees the lock of a writer that dies.
        """
        for name in [name for name in sizes if name.startswith(SCRATCH)]:
            path = self.directory / name
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink()
                del sizes[name]

    def _sizes(self) -> dict[str, int]:
        """Return the sizes of samples, and of those that are being written."""
        sizes = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) or entry.name.startswith(SCRATCH):
                    with contextlib.suppress(FileNotFoundError):
                        sizes[entry.name] = entry.stat().st_size
        return sizes


class SampleFile:
    """A sample that is being written: features first, a piece at a time, then the tokens.

    Each method but `close` raises `OSError` if the disk refuses, and `SampleError` if there is no
    space, or the sample alone takes too much of it.
    """

    def __init__(self, ring: SampleStore) -> None:
        """Begin a file whose name no reader takes for a sample."""
        self._ring, self._size, self._width = ring, 0, 0
        ring.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = ring.directory / f"{SCRATCH}{os.getpid()}-{time.time_ns()}"
        self._file = open(self._path, "xb", opener=_for_owner)  # noqa: SIM115
        # A process that scans the folder before this line deletes the file: one sample is lost.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, features: NDArray[Any]) -> None:
        """Write the features, bfloat16 [rows, width], of the next positions."""
        self._width = features.shape[1]
        header = b"" if self._size else bytes(_HEADER_BYTES)
        self._write(header + features.tobytes())

    def finish(self, token_ids: NDArray[Any], **about: Any) -> str:
        """Write the tokens and the other fields of `TrainingSample`, `about`; return the name."""
        begin, end = self._size - _HEADER_BYTES, self._size - _HEADER_BYTES + token_ids.nbytes
        header = {
            "__metadata__": {"format": _FORMAT, "sample": json.dumps(about)},
            "features": {
                "dtype": "BF16",
                "shape": [len(token_ids), self._width],
                "data_offsets": [0, begin],
            },
            "token_ids": {
                "dtype": "I32",
                "shape": [len(token_ids)],
                "data_offsets": [begin, end],
            },
        }
        length = _HEADER_BYTES - 8
        text = json.dumps(header).encode().ljust(length)
        if len(text) > length:
            raise SampleError(f"a header of {len(text)} bytes, more than {length}")
        self._write(token_ids.tobytes())
        self._file.seek(0)
        self._file.write(length.to_bytes(8, "little") + text)
        self._file.flush()
        name = self._ring.next_name()
        self._path.replace(self._ring.directory / name)
        return name

    def close(self) -> None:
        """Delete the file, unless it is finished; one that cannot be deleted is swept later."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a write that the disk refused is refused again
            self._file.close()

    def _write(self, data: bytes) -> None:
        self._size += len(data)
        largest = self._ring.limit_bytes // _LARGEST_PART
        if self._size > largest:
            raise SampleError(f"a sample of {self._size} bytes, more than {largest}")
        # Before it is written, so that the limit holds at any moment.
        self._ring.make_room(len(data))
        self._file.write(data)
        self._file.flush()


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
