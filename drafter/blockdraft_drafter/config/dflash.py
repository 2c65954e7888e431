"""The shape of a DFlash drafter, in the format in which drafters are published."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from blockdraft_drafter.config import published
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


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """Everything the drafter's forward pass depends on.

    Attributes:
        decoder: The draft layers: a Qwen3 decoder whose `hidden_size` and `vocab_size` are the
            target's; embedding and head are the target's too.
        block_size: Tokens per block, the anchor included.
        mask_token_id: Fills the slots to be drafted.
        target_layer_ids: Target layers whose outputs, concatenated, are a feature.
        num_target_layers: Decoder layers of the target.
        layer_types: "full_attention" or "sliding_attention" for each draft layer.
        sliding_window: Sliding layers see keys less than this many positions away.
        is_causal: Whether a block position sees only itself and what is before it.
        sample_from_anchor: Whether a slot's output is the token after its position, so that the
            anchor's slot drafts too and one mask fewer is needed; as published, a slot's output
            is the token at its position.
        draft_vocab_size: Tokens the drafter can propose (`vocabulary.py`); None for all.
        markov_rank: Of the bias by the token before (`markov.py`); 0 for none.
        target_fingerprint: The target the drafter was trained for, or None if not recorded.
        trained: Whether the weights were trained.
    """

    decoder: DecoderConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    is_causal: bool = False
    sample_from_anchor: bool = False
    draft_vocab_size: int | None = None
    markov_rank: int = 0
    target_fingerprint: str | None = None
    trained: bool = True

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        published.check_block_size(self.block_size)
        if not 0 <= self.mask_token_id < self.decoder.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} is outside the vocabulary of"
                f" {self.decoder.vocab_size}"
            )
        most = self.decoder.vocab_size
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= most:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} is not in [1, {most}]")
        if not 0 <= self.markov_rank <= most:
            raise ValueError(f"markov_rank {self.markov_rank} is not in [0, {most}]")
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids must not be empty")
        for layer_id in self.target_layer_ids:
            if not 0 <= layer_id < self.num_target_layers:
                raise ValueError(f"target layer {layer_id} is not in [0, {self.num_target_layers})")
        if len(self.layer_types) != self.decoder.num_layers:
            raise ValueError(
                f"{len(self.layer_types)} layer_types for {self.decoder.num_layers} layers"
            )
        if unknown := set(self.layer_types) - {FULL_ATTENTION, SLIDING_ATTENTION}:
            raise ValueError(f"unknown layer_types {sorted(unknown)}")
        if SLIDING_ATTENTION in self.layer_types and (self.sliding_window or 0) < 1:
            raise ValueError("sliding_attention layers need a positive sliding_window")

    @property
    def feature_width(self) -> int:
        """Elements of one feature."""
        return len(self.target_layer_ids) * self.decoder.hidden_size

    @property
    def slots(self) -> int:
        """Tokens per block that pass through the model: the anchor and the masks."""
        return self.block_size - 1 if self.sample_from_anchor else self.block_size

    @property
    def first_drafting_slot(self) -> int:
        """The first slot whose output is drafted; the `block_size - 1` from it on are."""
        return 0 if self.sample_from_anchor else 1

    def window(self, layer: int) -> int | None:
        """Return how far draft layer `layer` sees, or None when it sees everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "DFlashConfig":
        """Read a published drafter's parsed `config.json`.

        Raises:
            ValueError: If a field is missing or asks for something this drafter does not compute.
        """
        return cls(**published.fields_from_hf(config))

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` of this drafter in the published format."""
        return published.hf_from_config(self)

    @classmethod
    def default_for(
        cls,
        target: DecoderConfig,
        *,
        block_size: int = 8,
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
