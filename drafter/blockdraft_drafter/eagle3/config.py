"""The shape of an EAGLE-3 drafter."""

from dataclasses import dataclass, replace

from blockdraft_drafter.config import DEFAULT_BLOCK_SIZE, DraftConfig
from blockdraft_models.decoder.config import DecoderConfig


def published_layer_ids(num_target_layers: int) -> tuple[int, ...]:
    """Return the published capture points of a target: low, middle and high.

    Published are the layers whose *inputs* are taken, 2, L / 2 and L - 3; an id here means the
    output of a layer, as everywhere in this project, so each is one less.

    Raises:
        ValueError: If the target is too shallow to have three.
    """
    ids = (1, num_target_layers // 2 - 1, num_target_layers - 4)
    if not 0 <= ids[0] < ids[1] < ids[2]:
        raise ValueError(f"a target of {num_target_layers} layers has no three capture points")
    return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(DraftConfig):
    """Everything the drafter's forward pass depends on; there is one draft layer.

    The block size is not part of published configurations, since any number of steps can be made.

    Attributes:
        norm_before_residual: Whether the residual stream starts from the normalized feature.
    """

    norm_before_residual: bool = False

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        if self.decoder.num_layers != 1:
            raise ValueError(f"EAGLE-3 has one draft layer, not {self.decoder.num_layers}")
        # Not super(): a class with slots is made twice, and this function knows the first only.
        DraftConfig.__post_init__(self)

    @classmethod
    def default_for(
        cls,
        target: DecoderConfig,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        target_layer_ids: tuple[int, ...] = (),
    ) -> "Eagle3Config":
        """Return the drafter this project builds for a target, without weights.

        Args:
            target: The target's shape.
            block_size: Tokens per block, the anchor included.
            target_layer_ids: Capture points; empty for the published ones.

        Raises:
            ValueError: If a capture point is no layer, or the target is too shallow to have the
                published ones.
        """
        decoder = replace(
            target,
            name=f"eagle3-{target.name}",
            num_layers=1,
            qk_norm=False,
            attention_bias=False,
            tie_word_embeddings=False,
        )
        return cls(
            decoder=decoder,
            block_size=block_size,
            target_layer_ids=target_layer_ids or published_layer_ids(target.num_layers),
            num_target_layers=target.num_layers,
            trained=False,
        )
