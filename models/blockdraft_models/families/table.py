"""The table of families, and the family of a checkpoint."""

from collections.abc import Iterator

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.families.deepseek import DEEPSEEK_V3, GLM4_MOE_LITE
from blockdraft_models.families.family import Family
from blockdraft_models.families.gemma3 import GEMMA3
from blockdraft_models.families.gemma4 import DIFFUSION_GEMMA, GEMMA4
from blockdraft_models.families.gpt_oss import GPT_OSS
from blockdraft_models.families.granite import GRANITE
from blockdraft_models.families.llama import LLAMA, MISTRAL
from blockdraft_models.families.olmo import OLMO2, OLMO3
from blockdraft_models.families.phi3 import PHI3
from blockdraft_models.families.qwen import (
    FAST_DLLM,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SDAR,
    SDAR_MOE,
)
from blockdraft_models.families.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from blockdraft_models.families.routed_experts import GLM4_MOE, MINIMAX_M2
from blockdraft_models.families.smollm3 import SMOLLM3
from blockdraft_models.families.tensors import (
    LayerNames,
    TensorName,
    conditioning_names,
    embedding_name,
    final_norm_name,
    head_name,
    layer_embedding_names,
)

FAMILIES: tuple[Family, ...] = (
    *(LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE),
    *(GEMMA3, GEMMA4, DIFFUSION_GEMMA, GPT_OSS, GRANITE, OLMO2, OLMO3, PHI3, SMOLLM3),
    *(DEEPSEEK_V3, GLM4_MOE_LITE, GLM4_MOE, MINIMAX_M2, SDAR, SDAR_MOE, FAST_DLLM),
)

_BY_MODEL_TYPE = {
    name: family for family in FAMILIES for name in (family.model_type, *family.same_as)
}
_BY_GGUF = {family.gguf: family for family in FAMILIES if family.gguf is not None}


def is_known(model_type: object) -> bool:
    """Return whether the `model_type` of a `config.json` has a family here."""
    return str(model_type) in _BY_MODEL_TYPE


def family_of_model_type(model_type: object) -> Family:
    """Return the family of a `config.json`; a ValueError lists the supported ones."""
    family = _BY_MODEL_TYPE.get(str(model_type))
    if family is None:
        raise ValueError(
            f"model_type {model_type!r} is not supported (supported: {', '.join(_BY_MODEL_TYPE)}); "
            "--implementation torch serves others"
        )
    return family


def family_of_gguf(architecture: object) -> Family:
    """Return the family of a GGUF file; a ValueError lists the supported ones."""
    family = _BY_GGUF.get(str(architecture))
    if family is None:
        raise ValueError(
            f"GGUF architecture {architecture!r} is not supported (supported: "
            f"{', '.join(sorted(_BY_GGUF))})"
        )
    return family


def tensor_names(config: DecoderConfig) -> Iterator[TensorName]:
    """Yield every weight of the decoder, each once, in a fixed order."""
    family = family_of_model_type(config.family)
    yield embedding_name(config)
    yield from layer_embedding_names(config)
    yield from conditioning_names(config)
    for layer in range(config.num_layers):
        yield from family.layer(LayerNames(config, layer))
    yield final_norm_name(config)
    head = head_name(config)
    if head is not None:
        yield head
