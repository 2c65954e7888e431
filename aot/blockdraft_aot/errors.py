"""What can go wrong while compiling ahead of time, each with a message that says what to do."""


class AotError(ValueError):
    """The command line, or what it names, is wrong."""


class DoesNotFitError(AotError):
    """The chips' memory is too small."""
