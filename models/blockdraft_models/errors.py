"""Errors this package raises on purpose; each is also a ValueError."""


class ModelError(ValueError):
    """Base of the errors of this package."""


class CheckpointError(ModelError):
    """A checkpoint is damaged, incomplete or of an unsupported kind."""


class TokenizerError(ModelError):
    """A tokenizer or chat template cannot be loaded or used."""


class ResolveError(ModelError):
    """A model name leads to nothing, or its download failed."""
