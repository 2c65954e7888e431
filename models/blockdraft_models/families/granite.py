"""Granite 3: Llama with factors of embeddings, scores, residuals and logits."""

import math
from typing import Any

from blockdraft_models.families.family import Family, Published, head_dim, number
from blockdraft_models.families.llama import plain_layer


def _fields(config: Published) -> dict[str, Any]:
    return {
        "embedding_scale": number(config, "embedding_multiplier"),
        "query_scale": number(config, "attention_multiplier") * math.sqrt(head_dim(config)),
        "residual_scale": number(config, "residual_multiplier"),
        "logit_divisor": number(config, "logits_scaling"),
    }


_FACTORS = ("embedding", "attention", "residual")

GRANITE = Family(
    "granite",
    _fields,
    plain_layer,
    defaults={
        **{f"{name}_multiplier": 1.0 for name in _FACTORS},
        "logits_scaling": 1.0,
        "attention_bias": False,
    },
)
