"""The shape of an EAGLE-3 or EAGLE-3.1 drafter, and its published form.

Names and defaults are those of SafeAILab/EAGLE and SpecForge checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockdraft_drafter.compiled.definition import (
    DEFAULT_BLOCK_SIZE,
    DRAFT_TO_TARGET,
    TARGET_TO_DRAFT,
    DraftConfig,
    DraftTensor,
)
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.families.family import read_config, section
from blockdraft_models.families.llama import LLAMA

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# Whether heads are normalized, as in speculators' drafters with a Qwen3 layer.
_QK_NORM = "qk_norm"
# Norms that later drafters have, named as in vLLM, SpecForge and NeMo AutoModel: those of EAGLE-3.1
# (arXiv 2605.09992), and that of speculators' drafters for gpt-oss.
_FURTHER_NORMS = ("fc_norm", "norm_output", "norm_before_fc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(DraftConfig):
    """Everything the drafter's forward pass depends on; there is one draft layer.

    The block size is not part of published configurations, since any number of steps can be made.
    """

    # Whether the residual stream starts from the normalized feature.
    norm_before_residual: bool = False
    # EAGLE-3.1: whether each captured output is normalized by itself before the projection, and
    # whether a step goes on from the output of the final norm, not from its input.
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False  # whether all captured outputs are normalized together

    def __post_init__(self) -> None:
        """Refuse shapes no drafter can have."""
        if self.decoder.num_layers != 1:
            raise ValueError(f"EAGLE-3 has one draft layer, not {self.decoder.num_layers}")
        if self.fc_norm and self.norm_before_fc:
            raise ValueError("fc_norm and norm_before_fc exclude each other")
        # Not super(): a class with slots is made twice, and this function knows the first only.
        DraftConfig.__post_init__(self)

    @classmethod
    def default_for(
        cls,
        target: DecoderConfig,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        num_layers: int = 1,
        target_layer_ids: tuple[int, ...] = (),
    ) -> "Eagle3Config":
        """Return the drafter this project builds for a target, without weights.

        It has one layer whatever `num_layers` is; no `target_layer_ids` stand for the published
        ones. Raises ValueError if a capture point is no layer, or the target is too shallow to have
        the published ones.
        """
        decoder = target.plain(
            "llama",
            name=f"eagle3-{target.name}",
            num_layers=1,
            qk_norm=False,
            tie_word_embeddings=False,
        )
        return cls(
            decoder=decoder,
            block_size=block_size,
            target_layer_ids=target_layer_ids or published_layer_ids(target.num_layers),
            num_target_layers=target.num_layers,
            trained=False,
        )

    @staticmethod
    def recognizes(config: Mapping[str, Any]) -> bool:
        """Tell from a parsed `config.json` whether a drafter is EAGLE-3 rather than DFlash.

        The first checkpoints name no architecture of their own, but a draft vocabulary, and no
        target layers, which every DFlash configuration has.
        """
        named = config.get("architectures")
        architectures = str(named).lower() if named else ""
        if "eagle" in architectures or "dflash" in architectures:
            return "eagle" in architectures
        nested = section(config, "dflash_config")
        return "draft_vocab_size" in config and "target_layer_ids" not in {**config, **nested}

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], target: DecoderConfig, *, block_size: int
    ) -> "Eagle3Config":
        """Read a published drafter's parsed `config.json`; most do not say their block size."""
        ours, eagle = section(config, "blockdraft"), section(config, "eagle_config")
        if not eagle.get("use_aux_hidden_state", True):
            raise ValueError("EAGLE drafters without auxiliary hidden states are not supported")
        # The draft layer is a Llama layer whatever the target is, but for norms of heads.
        decoder = replace(read_config(LLAMA, config, {}), qk_norm=bool(config.get(_QK_NORM)))
        anywhere = {**eagle, **config}
        named = eagle.get(_LAYER_IDS, config.get(_LAYER_IDS))
        size = config.get("draft_vocab_size")
        return cls(
            decoder=decoder,
            block_size=int(ours.get("block_size", block_size)),
            # Most publishers leave the usual ones out, or empty.
            target_layer_ids=(
                captured_outputs([int(layer_id) for layer_id in named])
                if named
                else published_layer_ids(target.num_layers)
            ),
            num_target_layers=target.num_layers,
            draft_vocab_size=None if size in (None, decoder.vocab_size) else int(size),
            norm_before_residual=bool(config.get("norm_before_residual", False)),
            **{flag: bool(anywhere.get(flag, False)) for flag in _FURTHER_NORMS},
            target_fingerprint=ours.get("target_fingerprint"),
            trained=bool(ours.get("trained", True)),
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` of the drafter in the published format."""
        common = self.common_to_hf()
        return {
            **common,
            "architectures": ["LlamaForCausalLMEagle3"],
            "blockdraft": {**common["blockdraft"], "block_size": self.block_size},
            "draft_vocab_size": self.draft_vocab_size or self.decoder.vocab_size,
            "eagle_config": {
                _LAYER_IDS: named_layers(self.target_layer_ids),
                "use_aux_hidden_state": True,
            },
            "model_type": "llama",
            "norm_before_residual": self.norm_before_residual,
            "tie_word_embeddings": False,
            # Only where set: the other configurations stay as they were.
            **{flag: True for flag in _FURTHER_NORMS if getattr(self, flag)},
            **({_QK_NORM: True} if self.decoder.qk_norm else {}),
        }

    def tensors(self) -> Iterator[DraftTensor]:
        """Yield every weight of the draft model, each once, in a fixed order."""
        decoder = self.decoder
        hidden, inner = decoder.hidden_size, decoder.intermediate_size
        q_width, kv_width = (
            heads * decoder.head_dim for heads in (decoder.num_heads, decoder.num_kv_heads)
        )
        yield DraftTensor("fc.weight", "fc.weight", (hidden, self.feature_width))
        for index in range(len(self.target_layer_ids) if self.fc_norm else 0):
            yield DraftTensor(f"fc_norm.{index}.scale", f"fc_norm.{index}.weight", (hidden,))
        if self.norm_before_fc:
            yield DraftTensor("input_norm.scale", "input_norm.weight", (self.feature_width,))
        for path, name in (
            ("embedding_norm", "midlayer.input_layernorm"),
            ("hidden_norm", "midlayer.hidden_norm"),
            ("mlp_norm", "midlayer.post_attention_layernorm"),
            ("norm", "norm"),
        ):
            yield DraftTensor(f"{path}.scale", f"{name}.weight", (hidden,))
        for path, name, shape in (
            ("attention.query", "self_attn.q_proj", (q_width, 2 * hidden)),
            ("attention.key", "self_attn.k_proj", (kv_width, 2 * hidden)),
            ("attention.value", "self_attn.v_proj", (kv_width, 2 * hidden)),
            ("attention.output", "self_attn.o_proj", (hidden, q_width)),
            ("mlp.gate", "mlp.gate_proj", (inner, hidden)),
            ("mlp.up", "mlp.up_proj", (inner, hidden)),
            ("mlp.down", "mlp.down_proj", (hidden, inner)),
        ):
            yield DraftTensor(f"{path}.weight", f"midlayer.{name}.weight", shape)
            if decoder.attention_bias and path.startswith("attention."):
                yield DraftTensor(f"{path}.bias", f"midlayer.{name}.bias", shape[:1])
        for path, name in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            if decoder.qk_norm:
                stored = f"midlayer.self_attn.{name}.weight"
                yield DraftTensor(f"attention.{path}.scale", stored, (decoder.head_dim,))

    def ignores(self, name: str) -> bool:
        """Return whether a published tensor may be there without being a weight of the drafter."""
        if name == DRAFT_TO_TARGET:
            return self.draft_vocab_size is None
        return name == TARGET_TO_DRAFT


def published_layer_ids(num_target_layers: int) -> tuple[int, ...]:
    """Return the published capture points of a target: low, middle and high.

    Published are the layers whose *inputs* are taken, 2, L / 2 and L - 3; an id here means the
    output of a layer, as everywhere in this project, so each is one less. Raises ValueError if the
    target is too shallow to have three.
    """
    ids = (1, num_target_layers // 2 - 1, num_target_layers - 4)
    if not 0 <= ids[0] < ids[1] < ids[2]:
        raise ValueError(f"a target of {num_target_layers} layers has no three capture points")
    return ids


def captured_outputs(named: Sequence[int]) -> tuple[int, ...]:
    """Return the layers whose outputs a configuration names as its capture points.

    There are two conventions, which only the first id tells apart: the layers whose outputs are
    taken, beginning with at most 1, or the layers after these, which begin later.

    Source: sgl-project/sglang pull request 25454.
    """
    return tuple(named if named[0] <= 1 else (layer_id - 1 for layer_id in named))


def named_layers(outputs: Sequence[int]) -> list[int]:
    """Return a configuration's ids of the layers with these outputs; see `captured_outputs`."""
    return list(outputs) if outputs[0] == 0 else [layer_id + 1 for layer_id in outputs]
