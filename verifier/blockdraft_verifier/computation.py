"""The identity of what a verifier computes: its target, and whatever decides how it rounds.

Two verifiers of the same target need not give the same tokens: in another element type, on another
device or compiled by another version, logits round otherwise, and a near tie falls to the other
token. An answer may go on only where its computation is the same.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

Rounding = Literal["", "exact", "inexact"]

_HEX_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Computation:
    """Everything that tokens depend on besides the request.

    Attributes:
        target_fingerprint: Identity of the target's weights and configuration.
        dtype: Element type of weights and activations.
        weights: Form in which the matrices of layers are held.
        device_kind: What it runs on; of a CPU also its instructions.
        device_count: How many of them the target is divided over.
        compiler: Version of jaxlib and of the device's own compiler.
        rounding: Whether all compiled steps round alike; empty while nobody has looked. Which ones
            do is left out: it changes with the drafter, whose blocks decide what is compiled.
        product_forms: How a CPU multiplies with bfloat16 weights of each width.
    """

    target_fingerprint: str
    dtype: str
    weights: Literal["float", "int8"]
    device_kind: str
    device_count: int
    compiler: str
    rounding: Rounding = ""
    product_forms: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Identity of all of it, 16 hex digits."""
        parts = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()[:_HEX_DIGITS]
