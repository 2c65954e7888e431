"""DFlash drafters as they are published: the fields of `config.json`, the names of the weights.

Field names and defaults are those of z-lab/dflash checkpoints and of `Qwen3Config` in
transformers; our own additions live under the extra key `blockdraft`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from blockdraft_drafter.compiled.vocabulary import TARGET_TO_DRAFT
from blockdraft_drafter.config import common_to_hf
from blockdraft_drafter.dflash.config import FULL_ATTENTION, SLIDING_ATTENTION, DFlashConfig
from blockdraft_drafter.files.tensors import DraftTensor
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.published_config import section
from blockdraft_models.weights.tensor_names import tensor_names

_PREFIX = "model."

# Keys whose presence changes what a forward pass computes in ways not built here; loading such
# a checkpoint as plain DFlash would draft nonsense without an error.
_UNSUPPORTED = (
    "attention_sink_bias",
    "final_logit_softcapping",
    "output_multiplier",
    "projector_type",
    "use_swa",
)
# Of the published kinds (vanilla, gated, rnn) the one that looks at nothing but the token before.
_MARKOV_HEAD_TYPE = "vanilla"
_UNSUPPORTED_PREFIXES = ("conv_", "selector_")


def config_from_hf(config: Mapping[str, Any]) -> DFlashConfig:
    """Read a published drafter's parsed `config.json`.

    Raises:
        ValueError: If a field is missing or asks for something this drafter does not compute.
    """
    nested, ours = section(config, "dflash_config"), section(config, "blockdraft")
    _refuse_unsupported({**config, **nested})
    # The draft layers are Qwen3 layers whatever the target is; the window is handled here.
    of_windows = ("sliding_window", "use_sliding_window", "layer_types")
    without_window = {key: value for key, value in config.items() if key not in of_windows}
    shifted = bool(config.get("sample_from_anchor", nested.get("sample_from_anchor", False)))
    decoder = DecoderConfig.from_hf({**without_window, "model_type": "qwen3"})
    window, layer_types = _attention_pattern(config, decoder.num_layers)
    return DFlashConfig(
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
        draft_vocab_size=_draft_vocab_size(config, nested),
        markov_rank=_markov_rank(config, nested),
        target_fingerprint=ours.get("target_fingerprint"),
        trained=bool(ours.get("trained", True)),
    )


def config_to_hf(config: DFlashConfig) -> dict[str, Any]:
    """Return the `config.json` of a drafter in the published format."""
    published: dict[str, Any] = {
        **common_to_hf(config),
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": config.block_inputs,
        "dflash_config": {
            "causal": config.is_causal,
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        "is_causal": config.is_causal,
        "layer_types": list(config.layer_types),
        "model_type": "qwen3",
        "num_target_layers": config.num_target_layers,
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": config.decoder.tie_word_embeddings,
        "use_sliding_window": config.sliding_window is not None,
    }
    if config.sample_from_anchor:
        published["sample_from_anchor"] = True
    if config.draft_vocab_size is not None:
        published["draft_vocab_size"] = config.draft_vocab_size
    if config.markov_rank:
        published["markov_rank"] = config.markov_rank
        published["markov_head_type"] = _MARKOV_HEAD_TYPE
    return published


def draft_tensors(config: DFlashConfig) -> Iterator[DraftTensor]:
    """Yield every weight of a drafter, each once, in a fixed order; 58 for five layers.

    A Markov head has two more, named as in DSpark checkpoints.
    """
    hidden = config.decoder.hidden_size
    yield DraftTensor("fc.weight", "fc.weight", (hidden, config.feature_width))
    yield DraftTensor("hidden_norm.scale", "hidden_norm.weight", (hidden,))
    for name in tensor_names(config.decoder):
        # Embedding and head are the target's; the rest is named as in any Qwen3 model.
        if name.path.startswith(("layers.", "norm.")):
            yield DraftTensor(name.path, name.hf.removeprefix(_PREFIX), name.shape)
    if config.markov_rank:
        vocab, rank = config.decoder.vocab_size, config.markov_rank
        for factor, rows in (("markov_w1", vocab), ("markov_w2", config.draft_vocab_size or vocab)):
            path = f"markov_head.{factor}"
            yield DraftTensor(path, f"{path}.weight", (rows, rank))


def ignores(config: DFlashConfig, name: str) -> bool:
    """Return whether a published tensor may be there that is no weight of the drafter."""
    # DSpark checkpoints also guess how far a draft will be accepted; here that is measured.
    if name.startswith("confidence_head."):
        return True
    return config.draft_vocab_size is not None and name == TARGET_TO_DRAFT


def _draft_vocab_size(config: Mapping[str, Any], nested: Mapping[str, Any]) -> int | None:
    """Return the size of a reduced vocabulary; some spell the full one out."""
    size = config.get("draft_vocab_size", nested.get("draft_vocab_size"))
    return None if size is None or size == config.get("vocab_size") else int(size)


def _markov_rank(config: Mapping[str, Any], nested: Mapping[str, Any]) -> int:
    rank = config.get("markov_rank", nested.get("markov_rank")) or 0
    kind = config.get("markov_head_type", nested.get("markov_head_type", _MARKOV_HEAD_TYPE))
    if rank and kind != _MARKOV_HEAD_TYPE:
        raise ValueError(f"drafters with a markov_head_type of {kind!r} are not supported")
    return int(rank)


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


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    for key, value in config.items():
        if value and (key in _UNSUPPORTED or key.startswith(_UNSUPPORTED_PREFIXES)):
            raise ValueError(f"drafters with {key} are not supported")


def _first(name: str, *places: Mapping[str, Any]) -> Any:
    for place in places:
        if place.get(name) is not None:
            return place[name]
    raise ValueError(f"drafter configuration lacks {name!r}")
