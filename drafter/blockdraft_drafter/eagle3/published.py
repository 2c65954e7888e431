"""EAGLE-3 drafters as they are published: the fields of `config.json`, the names of the weights.

Field names and defaults are those of SafeAILab/EAGLE and SpecForge checkpoints; our own additions
live under the extra key `blockdraft`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blockdraft_drafter.compiled.vocabulary import DRAFT_TO_TARGET, TARGET_TO_DRAFT
from blockdraft_drafter.config import common_to_hf
from blockdraft_drafter.eagle3.config import Eagle3Config, published_layer_ids
from blockdraft_drafter.files.tensors import DraftTensor
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.published_config import section

_ARCHITECTURE = "LlamaForCausalLMEagle3"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# Changes what a forward pass computes in ways not built here.
_UNSUPPORTED = ("norm_before_fc",)


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


def config_from_hf(
    config: Mapping[str, Any], *, num_target_layers: int, block_size: int
) -> Eagle3Config:
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
    return Eagle3Config(
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


def config_to_hf(config: Eagle3Config) -> dict[str, Any]:
    """Return the `config.json` of a drafter in the published format."""
    common = common_to_hf(config)
    return {
        **common,
        "architectures": [_ARCHITECTURE],
        "blockdraft": {**common["blockdraft"], "block_size": config.block_size},
        "draft_vocab_size": config.draft_vocab_size or config.decoder.vocab_size,
        "eagle_config": {
            _LAYER_IDS: named_layers(config.target_layer_ids),
            "use_aux_hidden_state": True,
        },
        "model_type": "llama",
        "norm_before_residual": config.norm_before_residual,
        "tie_word_embeddings": False,
    }


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


def draft_tensors(config: Eagle3Config) -> Iterator[DraftTensor]:
    """Yield every weight of the draft model, each once, in a fixed order."""
    decoder = config.decoder
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    q_width, kv_width = (
        heads * decoder.head_dim for heads in (decoder.num_heads, decoder.num_kv_heads)
    )
    yield DraftTensor("fc.weight", "fc.weight", (hidden, config.feature_width))
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


def ignores(config: Eagle3Config, name: str) -> bool:
    """Return whether a published tensor may be there that is no weight of the drafter."""
    if name == DRAFT_TO_TARGET:
        return config.draft_vocab_size is None
    return name == TARGET_TO_DRAFT
