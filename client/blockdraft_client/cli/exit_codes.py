"""What the exit codes of `blockdraft` mean."""

OK = 0
FAILED = 1
"""The server, or the connection to it, failed."""
USAGE = 2
"""The command line, or a file it names, is wrong."""
INTERRUPTED = 130


class UsageError(Exception):
    """The command line, or a file it names, is wrong."""


class CommandFailedError(Exception):
    """The command could not do its work; the message says why."""
