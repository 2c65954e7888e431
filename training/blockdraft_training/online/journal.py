"""The journal of the trainer, a small file: for people, for metrics, and to resume from."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_drafter.learning.records import read_record, write_record

_NAME = "journal.json"


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
    samples_refused: int = 0  # samples that could not be learned from

    def begin_candidate(self, parent: int | None, first_evaluation: int) -> None:
        """Forget the candidate before, but not the counts of all candidates."""
        self.parent, self.steps = parent, 0
        self.evaluations, self.next_evaluation = 0, first_evaluation

    def write(self, directory: Path) -> None:
        """Replace the file in a folder; after an `OSError` the earlier one stays."""
        directory.mkdir(parents=True, exist_ok=True)
        write_record(directory / _NAME, self)

    @classmethod
    def read(cls, directory: Path) -> "Journal":
        """Return the journal in a folder; an empty one if there is none, or it is damaged."""
        try:
            return read_record(directory / _NAME, cls)
        except (OSError, ValueError):
            return cls()
