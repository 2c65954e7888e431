"""Configurations in the format of vLLM's speculators, read as those of a method's first publisher.

Their draft layers are a section of their own, and their capture points the layers whose inputs are
taken. Sources: vllm-project/speculators `src/speculators/models/*/config.py` at c05b95b; of DFlash
2, whose fields and tensors have the names of its first publisher, vLLM's reader
`transformers_utils/configs/speculators`.
"""

from collections.abc import Mapping
from typing import Any

from blockdraft_models.families.family import section

_KIND = "speculators_model_type"
_ARCHITECTURES = {
    "eagle3": "LlamaForCausalLMEagle3",
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "DSparkDraftModel",
}
_LAYERS = "transformer_layer_config"


def publishers_form(config: Mapping[str, Any], num_target_layers: int) -> Mapping[str, Any]:
    """Return a `config.json` as the publisher of the method writes it.

    Raises ValueError if it is one of speculators whose kind, or whose windows, are not supported.
    """
    kind = config.get(_KIND)
    if kind is None:
        return config
    if kind not in _ARCHITECTURES:
        raise ValueError(f"drafters with a {_KIND} of {kind!r} are not supported")
    layers = section(config, _LAYERS)
    with_window = "sliding_attention" in (layers.get("layer_types") or ())
    if with_window and (kind == "eagle3" or not config.get("sliding_window_non_causal")):
        raise ValueError("drafters of speculators with causal windows are not supported")
    published = {**layers, **config, "architectures": [_ARCHITECTURES[kind]]}
    name = f"{'eagle_' if kind == 'eagle3' else ''}aux_hidden_state_layer_ids"
    outputs = [int(layer_id) - 1 for layer_id in config.get(name) or ()]
    if outputs and min(outputs) < 0:
        raise ValueError("drafters that take the input of the first layer are not supported")
    if kind == "eagle3":
        # Published EAGLE-3 names inputs too, or outputs from the first layer on.
        published[name] = outputs if outputs[:1] == [0] else config.get(name)
        return published | {"qk_norm": layers.get("model_type") == "qwen3"}
    return published | {
        "target_layer_ids": outputs or None,
        "num_target_layers": num_target_layers,
    }


def publishers_name(stored: str, config: Mapping[str, Any]) -> str:
    """Return the name that the publisher of the method gives a stored tensor."""
    if config.get(_KIND) == "eagle3" and stored.startswith("layers.0."):
        return stored.replace("layers.0.", "midlayer.", 1)
    return stored
