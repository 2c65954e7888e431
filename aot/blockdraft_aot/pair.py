"""What is compiled: a target and the drafter beside it."""

from dataclasses import dataclass

from blockdraft_drafter.config import DraftConfig
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.weights.quantization import WeightFormat


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the drafter beside it.

    Attributes:
        target: The target's shape.
        drafter: The drafter's shape; None to decode plainly.
        weights: How the matrices of the target's layers are stored.
    """

    target: DecoderConfig
    drafter: DraftConfig | None
    weights: WeightFormat = "float"

    @property
    def capture(self) -> tuple[int, ...]:
        """Target layers whose outputs make a feature."""
        return () if self.drafter is None else self.drafter.target_layer_ids

    @property
    def max_block(self) -> int:
        """Most tokens of a decoding row, the anchor included."""
        return 1 if self.drafter is None else self.drafter.block_size
