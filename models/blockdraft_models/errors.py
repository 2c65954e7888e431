"""Errors this package raises on purpose; each is also a ValueError.

Whatever reads a checkpoint may find it damaged, incomplete or of an unsupported kind, and says so
by the error of its folder: CheckpointError in `weights/`, TokenizerError in `tokenizer/`. Shapes in
`decoder/` are refused by a plain ValueError, since it does not know where they were read.
"""


class ModelError(ValueError):
    """Base of the errors of this package."""


class CheckpointError(ModelError):
    """A checkpoint is damaged, incomplete or of an unsupported kind."""


class TokenizerError(ModelError):
    """A tokenizer or chat template cannot be loaded or used."""


class DeviceError(ModelError):
    """There is nothing to compute on."""


class ResolveError(ModelError):
    """A model name leads to nothing, or its download failed."""
