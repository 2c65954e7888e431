"""Errors of measurements; each message says what to do."""


class BenchError(ValueError):
    """The measurement cannot be made."""


class BenchUsageError(BenchError):
    """The command line, or a file it names, is wrong."""
