"""The shape of a DFlash drafter, and its published form.

Names and defaults are those of z-lab/dflash checkpoints and of `Qwen3Config` in transformers. Those
of DSpark, in which the anchor drafts too, are read as well.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_drafter.compiled.definition import (
    DEFAULT_BLOCK_SIZE,
    TARGET_TO_DRAFT,
    DraftConfig,
    DraftTensor,
)
from blockdraft_drafter.dflash.convolution import TAPS, convolution_tensors
from blockdraft_drafter.dflash.selector import selector_tensors
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.families.family import read_config, section
from blockdraft_models.families.qwen import QWEN3
from blockdraft_models.families.table import tensor_names

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

# Keys whose presence changes what a forward pass computes in ways not built here; loading such
# a checkpoint as plain DFlash would draft nonsense without an error.
_UNSUPPORTED = (
    "attention_sink_bias",
    "input_embedding_scale",
    "projector_type",
    "use_swa",
)
_DSPARK = "dspark"  # in the architecture's name, and the projector_type of SpecForge
# Of the published kinds (vanilla, gated, rnn) the one that looks at nothing but the token before.
_MARKOV_HEAD_TYPE = "vanilla"
# Fields of DFlash 2, with their type and their value without it.
_DFLASH2_FIELDS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "conv_group_size": (int, 0),
    "selector_rank": (int, 0),
    "selector_top_k": (int, 0),
    "output_multiplier": (float, 1.0),
    "final_logit_softcapping": (float, None),
}
# Any other key that begins so would be another kind of convolution or selector.
_DFLASH2_PREFIXES = ("conv_", "selector_")
_DFLASH2_KEYS = {*_DFLASH2_FIELDS, "conv_kernel_size", "selector_loss_weight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(DraftConfig):
    """Everything the drafter's forward pass depends on; the draft layers are a Qwen3 decoder's."""

    mask_token_id: int  # fills the inputs of a block that are to be drafted
    layer_types: tuple[str, ...]  # "full_attention" or "sliding_attention" for each draft layer
    sliding_window: int | None = None  # sliding layers see keys less than this many positions away
    is_causal: bool = False  # whether a block position sees only itself and what is before it
    # Whether an input's output is the token after its position, so that the anchor drafts too and
    # one mask fewer is needed; as published, an input's output is the token at its position.
    sample_from_anchor: bool = False
    markov_rank: int = 0  # of the bias by the token before (`MarkovHead`); 0 for none
    # DFlash 2: channels that share a correction of the convolutions (`DynamicConvolution`), 0 for
    # no convolutions; rank and candidates of the selector (`CandidateSelector`), 0 for none.
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    # Factor of the head's logits, and the bound at which they level off after that.
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None

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
        if self.conv_group_size and self.decoder.hidden_size % self.conv_group_size:
            raise ValueError(
                f"conv_group_size {self.conv_group_size} does not divide"
                f" a hidden_size of {self.decoder.hidden_size}"
            )
        if self.selector_rank and not 1 <= self.selector_top_k <= vocab_size:
            raise ValueError(f"selector_top_k {self.selector_top_k} is not in [1, {vocab_size}]")
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
        """The first of the `block_size - 1` inputs whose outputs are drafted."""
        return 0 if self.sample_from_anchor else 1

    @property
    def is_dflash2(self) -> bool:
        """Whether the drafter has a convolution or a selector."""
        return bool(self.conv_group_size or self.selector_rank)

    def window(self, layer: int) -> int | None:
        """Return the window of draft layer `layer`, or None when it sees everything."""
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

        It has `num_features` target layers per feature, or fewer if the target is too shallow.
        """
        decoder = target.plain(
            "qwen3", name=f"dflash-{target.name}", num_layers=num_layers, qk_norm=True
        )
        # Between layer 1 and layer n-3 there are n-3 layers to choose from.
        num_features = max(1, min(num_features, target.num_layers - 3))
        return cls(
            decoder=decoder,
            block_size=block_size,
            mask_token_id=_default_mask_token(target),
            target_layer_ids=build_target_layer_ids(target.num_layers, num_features),
            num_target_layers=target.num_layers,
            layer_types=(FULL_ATTENTION,) * num_layers,
            trained=False,
        )

    @staticmethod
    def recognizes(config: Mapping[str, Any]) -> bool:
        """Return True: many checkpoints name no architecture, so DFlash is the last to be asked."""
        return True

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], target: DecoderConfig, *, block_size: int
    ) -> "DFlashConfig":
        """Read a published drafter's parsed `config.json`, which has a block size of its own."""
        nested, ours = section(config, "dflash_config"), section(config, "blockdraft")
        for key, value in {**config, **nested}.items():
            unknown = key.startswith(_DFLASH2_PREFIXES) and key not in _DFLASH2_KEYS
            if value and (key in _UNSUPPORTED or unknown) and value != _DSPARK:
                raise ValueError(f"drafters with {key} are not supported")
        # The draft layers are Qwen3 layers whatever the target is; the window is handled here.
        of_windows = ("sliding_window", "use_sliding_window", "layer_types")
        without_window = {key: value for key, value in config.items() if key not in of_windows}
        decoder = read_config(QWEN3, without_window, {})
        window, layer_types = _attention_pattern(config, decoder.num_layers)
        anywhere = {**nested, **config}
        dflash2 = _dflash2_fields(anywhere)
        # Of the publishers of DSpark, only speculators has a field for this.
        named = str([config.get("architectures"), nested.get("projector_type")]).lower()
        shifted = bool(anywhere.get("sample_from_anchor", _DSPARK in named))
        # Some spell the full vocabulary out.
        size = anywhere.get("draft_vocab_size")
        draft_vocab = None if size in (None, decoder.vocab_size) else int(size)
        markov_rank = anywhere.get("markov_rank") or 0
        markov_head = anywhere.get("markov_head_type", _MARKOV_HEAD_TYPE)
        if markov_rank and markov_head != _MARKOV_HEAD_TYPE:
            raise ValueError(
                f"drafters with a markov_head_type of {markov_head!r} are not supported"
            )
        if dflash2["selector_rank"] and (markov_rank or draft_vocab is not None):
            raise ValueError(
                "drafters with a selector and a Markov head or a draft vocabulary are not supported"
            )
        return cls(
            decoder=decoder,
            # Version 1 has it at the top level, later configurations in dflash_config.
            # Theirs counts the inputs; where the anchor drafts too, a block is one token longer.
            block_size=_first("block_size", config, nested) + shifted,
            mask_token_id=_first("mask_token_id", nested, config),
            target_layer_ids=tuple(_first("target_layer_ids", nested, config)),
            num_target_layers=_first("num_target_layers", config, nested),
            layer_types=layer_types,
            sliding_window=window,
            # The reference implementation attends without a causal mask on every layer.
            is_causal=bool(
                config.get("is_causal", nested.get("causal", nested.get("is_causal", False)))
            ),
            sample_from_anchor=shifted,
            draft_vocab_size=draft_vocab,
            markov_rank=int(markov_rank),
            **dflash2,
            target_fingerprint=ours.get("target_fingerprint"),
            trained=bool(ours.get("trained", True)),
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` of the drafter in the published format."""
        published: dict[str, Any] = {
            **self.common_to_hf(),
            "architectures": ["DFlashDraftModel"],
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "block_size": self.block_inputs,
            "dflash_config": {
                "causal": self.is_causal,
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "is_causal": self.is_causal,
            "layer_types": list(self.layer_types),
            "model_type": "qwen3",
            "num_target_layers": self.num_target_layers,
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": self.decoder.tie_word_embeddings,
            "use_sliding_window": self.sliding_window is not None,
        }
        if self.sample_from_anchor:
            published["sample_from_anchor"] = True
        if self.draft_vocab_size is not None:
            published["draft_vocab_size"] = self.draft_vocab_size
        if self.markov_rank:
            published["markov_rank"] = self.markov_rank
            published["markov_head_type"] = _MARKOV_HEAD_TYPE
        if self.is_dflash2:
            published["architectures"] = ["DFlash2DraftModel"]
            del published["auto_map"]
        published["dflash_config"] |= {
            name: getattr(self, name)
            for name, (_, value) in _DFLASH2_FIELDS.items()
            if getattr(self, name) != value
        }
        if self.conv_group_size:
            published["dflash_config"]["conv_kernel_size"] = TAPS
        return published

    def tensors(self) -> Iterator[DraftTensor]:
        """Yield every weight of the draft model, each once, in a fixed order; 58 for five layers.

        A Markov head has two more, named as in DSpark checkpoints. The convolutions of DFlash 2
        have four more for each layer, its selector three.
        """
        hidden, vocab = self.decoder.hidden_size, self.decoder.vocab_size
        yield DraftTensor("fc.weight", "fc.weight", (hidden, self.feature_width))
        yield DraftTensor("hidden_norm.scale", "hidden_norm.weight", (hidden,))
        for name in tensor_names(self.decoder):
            # Embedding and head are the target's; the rest is named as in any Qwen3 model.
            if name.path.startswith(("layers.", "norm.")):
                yield DraftTensor(name.path, name.hf.removeprefix("model."), name.shape)
        for layer in range(self.decoder.num_layers if self.conv_group_size else 0):
            yield from convolution_tensors(f"layers.{layer}", hidden, self.conv_group_size)
        if self.selector_rank:
            yield from selector_tensors(vocab, hidden, self.selector_rank)
        if self.markov_rank:
            rank = self.markov_rank
            draft_vocab = self.draft_vocab_size or vocab
            for factor, rows in (("markov_w1", vocab), ("markov_w2", draft_vocab)):
                path = f"markov_head.{factor}"
                yield DraftTensor(path, f"{path}.weight", (rows, rank))

    def ignores(self, name: str) -> bool:
        """Return whether a published tensor may be there without being a weight of the drafter."""
        # DSpark checkpoints also guess how far a draft will be accepted; here that is measured.
        if name.startswith("confidence_head."):
            return True
        return self.draft_vocab_size is not None and name == TARGET_TO_DRAFT


def build_target_layer_ids(num_target_layers: int, num_features: int) -> tuple[int, ...]:
    """Spread the feature layers evenly from the second to the third-to-last target layer.

    Id i means the output of decoder layer i; ids rise. Raises ValueError if the target has too few
    layers for distinct ids.

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


def _default_mask_token(target: DecoderConfig) -> int:
    """Return the mask of a target whose tokenizer has none: a token it hardly ever meets.

    Any id works as long as training and serving agree. The last row of an embedding padded to a
    round size is never a real token; in a vocabulary without padding it is the rarest merge.
    """
    special = {*target.eos_token_ids, target.bos_token_id}
    candidates = range(target.vocab_size - 1, -1, -1)
    return next((token for token in candidates if token not in special), 0)


def _attention_pattern(
    config: Mapping[str, Any], num_layers: int
) -> tuple[int | None, tuple[str, ...]]:
    """Return the window and the type of each layer."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    layer_types = config.get("layer_types")
    if window is None:
        return None, (FULL_ATTENTION,) * num_layers
    if layer_types is not None:
        return window, tuple(layer_types)
    if not config.get("use_sliding_window"):
        return None, (FULL_ATTENTION,) * num_layers
    # Qwen3Config: the first max_window_layers layers attend to everything.
    full = min(config.get("max_window_layers", 28), num_layers)
    return window, (FULL_ATTENTION,) * full + (SLIDING_ATTENTION,) * (num_layers - full)


def _dflash2_fields(published: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of DFlash 2."""
    taps = published.get("conv_kernel_size") or TAPS
    if taps != TAPS:
        raise ValueError(f"drafters with a conv_kernel_size of {taps} are not supported")
    # A field that is null or zero counts as missing.
    return {
        name: kind(published[name]) if published.get(name) else value
        for name, (kind, value) in _DFLASH2_FIELDS.items()
    }


def _first(name: str, *places: Mapping[str, Any]) -> Any:
    for place in places:
        if place.get(name) is not None:
            return place[name]
    raise ValueError(f"drafter configuration lacks {name!r}")
