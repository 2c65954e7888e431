"""The shape of a DFlash drafter."""

from dataclasses import dataclass, replace

from blockdraft_drafter.config import DEFAULT_BLOCK_SIZE, DraftConfig
from blockdraft_models.decoder.config import DecoderConfig

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"


def build_target_layer_ids(num_target_layers: int, num_features: int) -> tuple[int, ...]:
    """Spread the feature layers evenly from the second to the third-to-last target layer.

    Args:
        num_target_layers: Decoder layers of the target.
        num_features: How many of their outputs make a feature.

    Returns:
        Rising layer ids; id i means the output of decoder layer i.

    Raises:
        ValueError: If the target has too few layers for distinct ids.

    Source: `build_target_layer_ids` of z-lab/dflash.
    """
    if num_features == 1:
        return (num_target_layers // 2,)
    start, end = 1, num_target_layers - 3
    span = (end - start) / (num_features - 1) if num_features > 1 else 0.0
    ids = tuple(round(start + index * span) for index in range(num_features))
    if num_features < 1 or len(set(ids)) < num_features or min(ids) < 0:
        raise ValueError(
            f"a target of {num_target_layers} layers has no {num_features} feature layers"
        )
    return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(DraftConfig):
    """Everything the drafter's forward pass depends on; the draft layers are a Qwen3 decoder's.

    Attributes:
        mask_token_id: Fills the inputs of a block that are to be drafted.
        layer_types: "full_attention" or "sliding_attention" for each draft layer.
        sliding_window: Sliding layers see keys less than this many positions away.
        is_causal: Whether a block position sees only itself and what is before it.
        sample_from_anchor: Whether an input's output is the token after its position, so that the
            anchor drafts too and one mask fewer is needed; as published, an input's output
            is the token at its position.
        markov_rank: Of the bias by the token before (`markov.py`); 0 for none.
    """

    mask_token_id: int
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    is_causal: bool = False
    sample_from_anchor: bool = False
    markov_rank: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        # Not super(): a class with slots is made twice, and this function knows the first only.
        DraftConfig.__post_init__(self)
        vocab_size = self.decoder.vocab_size
        if not 0 <= self.mask_token_id < vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} is outside the vocabulary of {vocab_size}"
            )
        if not 0 <= self.markov_rank <= vocab_size:
            raise ValueError(f"markov_rank {self.markov_rank} is not in [0, {vocab_size}]")
        if len(self.layer_types) != self.decoder.num_layers:
            raise ValueError(
                f"{len(self.layer_types)} layer_types for {self.decoder.num_layers} layers"
            )
        if unknown := set(self.layer_types) - {FULL_ATTENTION, SLIDING_ATTENTION}:
            raise ValueError(f"unknown layer_types {sorted(unknown)}")
        if SLIDING_ATTENTION in self.layer_types and (self.sliding_window or 0) < 1:
            raise ValueError("sliding_attention layers need a positive sliding_window")

    @property
    def block_inputs(self) -> int:
        """Tokens per block that pass through the model: the anchor and the masks."""
        return self.block_size - 1 if self.sample_from_anchor else self.block_size

    @property
    def first_drafting_input(self) -> int:
        """The first input whose output is drafted; the `block_size - 1` from it on are."""
        return 0 if self.sample_from_anchor else 1

    def window(self, layer: int) -> int | None:
        """Return how far draft layer `layer` sees, or None when it sees everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None

    @classmethod
    def default_for(
        cls,
        target: DecoderConfig,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        num_layers: int = 2,
        num_features: int = 5,
    ) -> "DFlashConfig":
        """Return the drafter this project builds for a target, without weights.

        Args:
            target: The target's shape.
            block_size: Tokens per block, the anchor included.
            num_layers: Draft layers.
            num_features: Target layers per feature; fewer if the target is too shallow.
        """
        decoder = replace(
            target,
            name=f"dflash-{target.name}",
            num_layers=num_layers,
            qk_norm=True,
            attention_bias=False,
        )
        # Between layer 1 and layer n-3 there are n-3 layers to choose from.
        num_features = max(1, min(num_features, target.num_layers - 3))
        return cls(
            decoder=decoder,
            block_size=block_size,
            mask_token_id=default_mask_token(target),
            target_layer_ids=build_target_layer_ids(target.num_layers, num_features),
            num_target_layers=target.num_layers,
            layer_types=(FULL_ATTENTION,) * num_layers,
            trained=False,
        )


def default_mask_token(target: DecoderConfig) -> int:
    """Return the mask of a target whose tokenizer has none: a token it hardly ever meets.

    Any id works as long as training and serving agree. The last row of an embedding padded to a
    round size is never a real token; in a vocabulary without padding it is the rarest merge.
    """
    special = {*target.eos_token_ids, target.bos_token_id}
    candidates = range(target.vocab_size - 1, -1, -1)
    return next((token for token in candidates if token not in special), 0)
