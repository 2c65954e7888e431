"""The seconds of the last start, kept beside its programs so that the next one can be estimated."""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping

import jax

from blockdraft_models.cache import write_at_once
from blockdraft_models.kept_programs import KeptPrograms, program_key


class StartTimes:
    """Seconds of the stages of the last starts of one configuration.

    A start that should find all its programs, and one that compiles them, are told apart.
    """

    def __init__(self, programs: KeptPrograms, configuration: object) -> None:
        """Read the file of this configuration, in the folder of the programs."""
        name = hashlib.sha256(repr(configuration).encode()).hexdigest()
        self._path = programs.folder / "starts" / name
        self._key = program_key(programs.package, configuration, jax.devices())
        self._record: dict[str, object] = {}
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(self._path.read_bytes())
            self._record = record if isinstance(record, dict) else {}
        self._kind = "warm" if self._record.get("key") == self._key else "cold"

    @property
    def last(self) -> Mapping[str, float]:
        """Seconds of each stage of the last start of this kind; empty if there is none."""
        stages = self._record.get(self._kind)
        if not isinstance(stages, dict):
            return {}
        seconds = stages.values()
        fine = all(isinstance(value, float) and 0 <= value < math.inf for value in seconds)
        return stages if fine else {}

    def write(self, seconds: Mapping[str, float]) -> None:
        """Keep the seconds of the stages of this start, if they can be written."""
        record = {**self._record, "key": self._key, self._kind: dict(seconds)}
        with contextlib.suppress(OSError):
            write_at_once(self._path, json.dumps(record).encode())
