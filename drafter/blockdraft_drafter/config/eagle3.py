"""The shape of an EAGLE-3 drafter, in the format in which drafters are published.

Field names and defaults are those of SafeAILab/EAGLE and SpecForge checkpoints; our own additions
live under the extra key `blockdraft`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockdraft_drafter.config.published import check_block_size
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.config_sources import section

_ARCHITECTURE = "LlamaForCausalLMEagle3"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# Changes what a forward pass computes in ways not built here.
_UNSUPPORTED = ("norm_before_fc",)


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


def captured_outputs(named: Sequence[int]) -> tuple[int, ...]:
    """Return the layers whose outputs a configuration names as its capture points.

    Published in two conventions that only the first id tells apart: the layers whose outputs are
    taken, beginning with 1, or those that are entered after the point, which begin later.

    Source: sgl-project/sglang pull request 25454.
    """
    return tuple(named if named[0] <= 1 else (layer_id - 1 for layer_id in named))


def named_layers(outputs: Sequence[int]) -> list[int]:
    """Return how a configuration names the layers with these outputs; see `captured_outputs`."""
    return list(outputs) if outputs[0] == 0 else [layer_id + 1 for layer_id in outputs]


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Everything the drafter's forward pass depends on.

    Attributes:
        decoder: The one draft layer; `hidden_size` and `vocab_size` are the target's.
        block_size: Tokens per block, the anchor included; not part of published configurations,
            since any number of steps can be made.
        target_layer_ids: Target layers whose outputs, concatenated, are a feature.
        num_target_layers: Decoder layers of the target.
        draft_vocab_size: Tokens the drafter can propose (`vocabulary.py`); None for all.
        norm_before_residual: Whether the residual stream starts from the normalized feature.
        target_fingerprint: The target the drafter was trained for, or None if not recorded.
        trained: Whether the weights were trained.
    """

    decoder: DecoderConfig
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    draft_vocab_size: int | None = None
    norm_before_residual: bool = False
    target_fingerprint: str | None = None
    trained: bool = True

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        if self.decoder.num_layers != 1:
            raise ValueError(f"EAGLE-3 has one draft layer, not {self.decoder.num_layers}")
        check_block_size(self.block_size)
        most = self.decoder.vocab_size
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= most:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} is not in [1, {most}]")
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids must not be empty")
        for layer_id in self.target_layer_ids:
            if not 0 <= layer_id < self.num_target_layers:
                raise ValueError(f"target layer {layer_id} is not in [0, {self.num_target_layers})")

    @property
    def feature_width(self) -> int:
        """Elements of one feature."""
        return len(self.target_layer_ids) * self.decoder.hidden_size

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], *, num_target_layers: int, block_size: int
    ) -> "Eagle3Config":
        """Read a published drafter's parsed `config.json`.

        Args:
            config: The parsed file.
            num_target_layers: Decoder layers of the target, for the default capture points.
            block_size: Tokens per block if the file does not say.

        Raises:
            ValueError: If a field is missing or asks for something this drafter does not compute.
        """
        ours, eagle = section(config, "blockdraft"), section(config, "eagle_config")
        if not eagle.get("use_aux_hidden_state", True):
            raise ValueError("EAGLE drafters without auxiliary hidden states are not supported")
        for key in _UNSUPPORTED:
            if config.get(key, eagle.get(key)):
                raise ValueError(f"EAGLE drafters with {key} are not supported")
        # The draft layer is a Llama layer whatever the target is.
        decoder = DecoderConfig.from_hf({**config, "model_type": "llama"})
        named = eagle.get(_LAYER_IDS, config.get(_LAYER_IDS))
        size = config.get("draft_vocab_size")
        return cls(
            decoder=decoder,
            block_size=int(ours.get("block_size", block_size)),
            # Most publishers leave the usual ones out, or empty.
            target_layer_ids=(
                captured_outputs([int(layer_id) for layer_id in named])
                if named
                else published_layer_ids(num_target_layers)
            ),
            num_target_layers=num_target_layers,
            draft_vocab_size=None if size in (None, decoder.vocab_size) else int(size),
            norm_before_residual=bool(config.get("norm_before_residual", False)),
            target_fingerprint=ours.get("target_fingerprint"),
            trained=bool(ours.get("trained", True)),
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` of this drafter in the published format."""
        decoder = self.decoder
        ours: dict[str, Any] = {"block_size": self.block_size, "trained": self.trained}
        if self.target_fingerprint is not None:
            ours["target_fingerprint"] = self.target_fingerprint
        return {
            "architectures": [_ARCHITECTURE],
            "model_type": "llama",
            "attention_bias": decoder.attention_bias,
            "draft_vocab_size": self.draft_vocab_size or decoder.vocab_size,
            "eagle_config": {
                _LAYER_IDS: named_layers(self.target_layer_ids),
                "use_aux_hidden_state": True,
            },
            "head_dim": decoder.head_dim,
            "hidden_act": "silu",
            "hidden_size": decoder.hidden_size,
            "intermediate_size": decoder.intermediate_size,
            "max_position_embeddings": decoder.max_position_embeddings,
            "norm_before_residual": self.norm_before_residual,
            "num_attention_heads": decoder.num_heads,
            "num_hidden_layers": decoder.num_layers,
            "num_key_value_heads": decoder.num_kv_heads,
            "rms_norm_eps": decoder.rms_norm_eps,
            "rope_scaling": decoder.rope_scaling_hf(),
            "rope_theta": decoder.rope_theta,
            "tie_word_embeddings": False,
            "vocab_size": decoder.vocab_size,
            "blockdraft": ours,
        }

    @classmethod
    def default_for(
        cls, target: DecoderConfig, *, block_size: int = 8, target_layer_ids: tuple[int, ...] = ()
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


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Tell from a drafter's parsed `config.json` whether it is EAGLE-3 rather than DFlash.

    The first checkpoints name no architecture of their own, but a draft vocabulary, and no target
    layers, which every DFlash configuration has.

    Raises:
        ValueError: If a part of the configuration is not what it should be.
    """
    named = config.get("architectures")
    architectures = str(named).lower() if named else ""
    if "eagle" in architectures or "dflash" in architectures:
        return "eagle" in architectures
    nested = section(config, "dflash_config")
    return "draft_vocab_size" in config and "target_layer_ids" not in {**config, **nested}
