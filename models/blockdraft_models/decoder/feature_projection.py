"""The first linear map of a drafter, which may run at the end of the target's step.

A feature is the outputs of a few of the target's layers side by side; the drafter begins by making
its own hidden state out of it, which is a fifth as wide with five layers. Where the process of the
target does that, a fifth of the bytes leave its device, are kept on its host and go to the drafter.
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from blockdraft_models.decoder.layer import normalize
from blockdraft_models.decoder.products import project


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class FeatureProjection:
    """A linear map, and normalizations after and before it if the drafter has them; a pytree.

    The normalization before it takes the output of each layer by itself, or all of them if `joint`.
    """

    weight: Any  # Float[Array, "hidden features"], as published
    scale: Any = None  # Float[Array, "hidden"], of the normalization after it; None for none
    eps: float = field(default=0.0, metadata={"static": True})  # of the normalizations
    input_scale: Any = None  # Float[Array, "features"], of those before it; None for none
    joint: bool = field(default=False, metadata={"static": True})

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
        features = features.astype(self.weight.dtype)
        if self.input_scale is not None:
            layers = 1 if self.joint else self.input_width // self.width
            outputs, scales = (
                jnp.split(array, layers, axis=-1) for array in (features, self.input_scale)
            )
            normalized = map(partial(normalize, eps=self.eps), outputs, scales)
            features = jnp.concatenate(list(normalized), axis=-1)
        hidden = project(features, self.weight)
        return hidden if self.scale is None else normalize(hidden, self.scale, self.eps)

    def arrays(self) -> list[Any]:
        """Return the weight and both scales, in the order of sending; None for one it lacks."""
        return [self.weight, self.scale, self.input_scale]

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits over everything that results depend on."""
        digest = hashlib.blake2b(digest_size=8)
        for array in self.arrays():
            if array is not None:
                # With features of one layer it has the shape of the other scale.
                digest.update(b"input" if array is self.input_scale else b"")
                elements = np.ascontiguousarray(array)
                digest.update(f"{elements.dtype.name}{elements.shape}".encode())
                digest.update(elements.view(np.uint8).data)
        digest.update(repr(self.eps).encode() + b"joint" * self.joint)
        return digest.hexdigest()
