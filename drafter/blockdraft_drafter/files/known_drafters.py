"""Drafters that others have published, by the target they were trained for.

Only those that load here: targets this project decodes, weights as safetensors, a method it knows.
"""

_QWEN3_4B = "z-lab/Qwen3-4B-DFlash-b16"
_QWEN3_8B = "z-lab/Qwen3-8B-DFlash-b16"
_LLAMA_3_1_8B = "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"

KNOWN_DRAFTERS = {
    "qwen/qwen3-4b": _QWEN3_4B,
    "qwen/qwen3-8b": _QWEN3_8B,
    "meta-llama/llama-3.1-8b-instruct": _LLAMA_3_1_8B,
    # The name under which it was published first.
    "meta-llama/meta-llama-3.1-8b-instruct": _LLAMA_3_1_8B,
}
"""Hub id of a drafter by that of its target, in lower case (source: README of z-lab/dflash)."""


def known_drafter(target: str) -> str | None:
    """Return the hub id of the drafter published for a target, or None.

    Args:
        target: What the user calls the target; only hub ids are known. Their case does not matter.
    """
    return KNOWN_DRAFTERS.get(target.lower())
