"""SmolLM3: Llama, of which every fourth layer does not rotate heads (NoPE, arXiv 2501.18795)."""

from typing import Any

from blockdraft_models.families.family import Family, Published, count, windows
from blockdraft_models.families.llama import plain_layer


def _fields(config: Published) -> dict[str, Any]:
    layers, interval = (
        count(config, name) for name in ("num_hidden_layers", "no_rope_layer_interval")
    )
    rotated = config["no_rope_layers"]  # 1 where a layer rotates, whatever the name says
    if rotated is None:
        rotated = [(layer + 1) % interval for layer in range(layers)]
    rotated = tuple(map(bool, rotated[:layers]))
    kinds = config["layer_types"]
    if kinds is None:
        slides = config["use_sliding_window"]
        kinds = [f"{'sliding' if slides and not near else 'full'}_attention" for near in rotated]
    return {
        "rotated": () if all(rotated) else rotated,
        "windows": windows({**config, "layer_types": kinds}),
    }


SMOLLM3 = Family(
    "smollm3",
    _fields,
    plain_layer,
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": None,
    },
)
