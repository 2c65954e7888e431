"""What learning says of itself, in a small file: for people, and to go on after an interruption."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

_NAME = "journal.json"


@dataclass(slots=True)
class Journal:
    """Counts and readings of one candidate and of learning as a whole.

    Attributes:
        parent: Version that a candidate must be better than; None if that is no version.
        steps: Made by the candidate.
        looks: Comparisons with the version that serves.
        next_look: Step of the next one.
        rate: What the learning rate is multiplied by.
        total_steps: Made by all candidates.
        thrown_away: Steps whose loss or gradients were no numbers.
        started_over: Candidates given up.
        promoted: Candidates promoted.
        loss: Of the last step.
        tau: Of the candidate on held-out recordings at the last look.
        current_tau: Of the version that serves, likewise.
        sequences: Held-out recordings at the last look.
        waited_seconds: For what was decoded.
        recordings_refused: Recordings that could not be learned from.
    """

    parent: int | None = None
    steps: int = 0
    looks: int = 0
    next_look: int = 0
    rate: float = 1.0
    total_steps: int = 0
    thrown_away: int = 0
    started_over: int = 0
    promoted: int = 0
    loss: float | None = None
    tau: float | None = None
    current_tau: float | None = None
    sequences: int = 0
    waited_seconds: float = 0.0
    recordings_refused: int = 0

    def begin_candidate(self, parent: int | None, first_look: int) -> None:
        """Forget the candidate before, but not what all of them did."""
        self.parent, self.steps, self.looks, self.next_look = parent, 0, 0, first_look

    def write(self, directory: Path) -> None:
        """Replace the file in a folder.

        Raises:
            OSError: If it cannot be written; the earlier one stays.
        """
        path = directory / _NAME
        directory.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            scratch.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def read(cls, directory: Path) -> "Journal":
        """Return the journal in a folder; an empty one if there is none, or it is damaged."""
        try:
            told = json.loads((directory / _NAME).read_text(encoding="utf-8"))
            known = {field.name for field in fields(cls)}
            return cls(**{name: value for name, value in told.items() if name in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return cls()
