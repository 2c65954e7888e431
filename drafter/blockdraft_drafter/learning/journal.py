"""The journal of learning, a small file: for people, for metrics, and to resume from.

The trainer writes it, the drafter reads it.
"""

import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_NAME = "journal.json"
# No journal is longer; another file of that name is not read whole.
_LONGEST_BYTES = 1 << 16
_LARGEST = 1 << 63


@dataclass(slots=True)
class Journal:
    """Counts and readings of one candidate and of learning as a whole."""

    # Version that a candidate must be better than; None if there is none.
    parent: int | None = None
    steps: int = 0  # made by the candidate
    evaluations: int = 0  # comparisons with the version that serves
    next_evaluation: int = 0  # step of the next one
    rate: float = 1.0  # factor of the learning rate
    total_steps: int = 0  # made by all candidates
    stepped_at: float | None = None  # when the last one was made, in seconds since 1970
    total_evaluations: int = 0  # comparisons of all candidates
    thrown_away: int = 0  # steps whose loss or gradients were not finite
    started_over: int = 0  # candidates abandoned
    promoted: int = 0  # candidates promoted
    loss: float | None = None  # of the last step
    tau: float | None = None  # of the candidate on held-out samples at the last evaluation
    current_tau: float | None = None  # of the version that serves, likewise
    sequences: int = 0  # held-out samples at the last evaluation
    waited_seconds: float = 0.0  # while sequences decoded, since the trainer's process began
    samples_refused: int = 0  # samples that could not be learned from

    def begin_candidate(self, parent: int | None, first_evaluation: int) -> None:
        """Forget the candidate before, but not the counts of all candidates."""
        self.parent, self.steps = parent, 0
        self.evaluations, self.next_evaluation = 0, first_evaluation

    def write(self, directory: Path) -> None:
        """Replace the file in a folder; after an `OSError` the earlier one stays."""
        directory.mkdir(parents=True, exist_ok=True)
        scratch = directory / f".{_NAME}.{os.getpid()}"
        try:
            scratch.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
            scratch.replace(directory / _NAME)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def read(cls, directory: Path) -> "Journal | None":
        """Return the journal in a folder; an empty one if there is none, None if it is damaged."""
        path = directory / _NAME
        try:
            # Reading something other than a file, such as a pipe, might never end.
            if not stat.S_ISREG(path.stat().st_mode):
                return None
            with path.open("rb") as file:
                text = file.read(_LONGEST_BYTES + 1)
            entry = json.loads(text if len(text) <= _LONGEST_BYTES else b"")
            if not isinstance(entry, dict):
                return None
            # Fields that only a newer version knows are skipped; missing ones get their defaults.
            present = [field for field in fields(cls) if field.name in entry]
            if not all(_is_value(entry[field.name], field.default) for field in present):
                return None
            return cls(**{field.name: entry[field.name] for field in present})
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, RecursionError):
            return None


def _is_value(value: Any, default: Any) -> bool:
    """Return whether a field may have a value: None if that is its default, or a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value is None and default is None
    return 0 <= value < _LARGEST and (isinstance(value, int) or type(default) is not int)
