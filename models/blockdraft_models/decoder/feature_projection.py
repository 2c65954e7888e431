"""The first linear map of a drafter, which may run at the end of the target's step.

A feature is the outputs of a few of the target's layers side by side; the drafter begins by making
its own hidden state out of it, which is a fifth as wide with five layers. Where the process of the
target does that, a fifth of the bytes leave its device, are kept on its host and go to the drafter.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from blockdraft_models.decoder.layer import normalize
from blockdraft_models.decoder.products import project


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class FeatureProjection:
    """A linear map, and a normalization after it if the drafter has one there; a pytree."""

    weight: Any  # Float[Array, "hidden features"], as published
    scale: Any = None  # Float[Array, "hidden"], of the normalization; None for none
    eps: float = field(default=0.0, metadata={"static": True})  # of the normalization

    @property
    def input_width(self) -> int:
        """Elements of a feature."""
        width: int = self.weight.shape[1]
        return width

    @property
    def width(self) -> int:
        """Elements of a projected feature."""
        width: int = self.weight.shape[0]
        return width

    def __call__(self, features: Float[Array, "rows features"]) -> Float[Array, "rows hidden"]:
        """Project features of any float type; the result has that of the weights."""
        hidden = project(features.astype(self.weight.dtype), self.weight)
        return hidden if self.scale is None else normalize(hidden, self.scale, self.eps)

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits over everything that results depend on."""
        digest = hashlib.blake2b(digest_size=8)
        for array in (self.weight, self.scale):
            if array is not None:
                elements = np.ascontiguousarray(array)
                digest.update(f"{elements.dtype.name}{elements.shape}".encode())
                digest.update(elements.view(np.uint8).data)
        digest.update(repr(self.eps).encode())
        return digest.hexdigest()
