"""Errors of making a drafter; each message says what to do."""


class TrainingError(ValueError):
    """A drafter cannot be made from this input."""


class CorpusError(TrainingError):
    """A corpus is damaged, empty, or another target's."""


class DivergedError(TrainingError):
    """The loss is no longer a number; the message names the last good checkpoint."""
