"""Errors this package raises on purpose; each is also a ValueError.

ModelError
├── CheckpointError   a checkpoint is damaged, incomplete or of an unsupported kind
├── TokenizerError    a tokenizer or chat template cannot be loaded or used
└── ResolveError      a model name leads to nothing, or its download failed
"""


class ModelError(ValueError):
    """Base of the errors of this package."""


class CheckpointError(ModelError):
    """A checkpoint is damaged, incomplete or of an unsupported kind."""


class TokenizerError(ModelError):
    """A tokenizer or chat template cannot be loaded or used."""


class ResolveError(ModelError):
    """A model name leads to nothing, or its download failed."""
