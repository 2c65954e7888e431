"""The published pairs of target and drafter that load here; imports nothing.

Sources: README of z-lab/dflash and the model cards on the hub. Only the default target ran with its
published weights; of the others the families are tested (docs/models.md), and `verified` says
whether the pair was compiled for TPUs.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A target, and the drafter that `--drafter auto` takes for it."""

    target: str  # hub id, or a known name
    licence: str  # of the target
    drafter: str  # hub id, or "included"
    method: str
    verified: str  # extent to which the pair was tried
    # Greedy τ on HumanEval, as published with the drafter; of ours, as measured.
    acceptance_length: float
    thinking: bool = True  # whether the drafter was trained on reasoning too, where there are any


_FAMILY = "family"  # tested with small random weights
_COMPILED = "family, compiled for TPU"
_APACHE = "Apache-2.0"


def _dflash(
    target: str,
    drafter: str,
    acceptance_length: float,
    *,
    licence: str = _APACHE,
    verified: str = _COMPILED,
    thinking: bool = True,
) -> KnownPair:
    hub_id = f"z-lab/{drafter}"
    return KnownPair(target, licence, hub_id, "DFlash", verified, acceptance_length, thinking)


KNOWN_PAIRS: tuple[KnownPair, ...] = (
    KnownPair("smollm2-135m", _APACHE, "included", "EAGLE-3, DFlash", "run", 3.90),
    _dflash("Qwen/Qwen3-4B", "Qwen3-4B-DFlash-b16", 6.64, thinking=False),
    _dflash("Qwen/Qwen3-8B", "Qwen3-8B-DFlash-b16", 6.50, thinking=False),
    _dflash("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B-DFlash", 8.09),
    _dflash("openai/gpt-oss-20b", "gpt-oss-20b-DFlash", 4.3),
    _dflash("openai/gpt-oss-120b", "gpt-oss-120b-DFlash", 4.4, verified=_FAMILY),
    _dflash(
        "meta-llama/Llama-3.1-8B-Instruct",
        "LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        4.91,
        licence="Llama 3.1",
    ),
)

# The name under which a target was published first.
_EARLIER_NAMES = {"meta-llama/meta-llama-3.1-8b-instruct": "meta-llama/llama-3.1-8b-instruct"}


def known_drafter(target: str) -> str | None:
    """Return the hub id of the drafter that is known for a target's hub id, or None."""
    name = target.lower()
    name = _EARLIER_NAMES.get(name, name)
    drafters = (pair.drafter for pair in KNOWN_PAIRS if pair.target.lower() == name)
    drafter = next(drafters, None)
    return drafter if drafter is not None and "/" in drafter else None


def table() -> list[str]:
    """Return the pairs as lines of a Markdown table."""
    return [
        "| Target | Licence | Drafter | Method | τ | Verified |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{pair.target}` | {pair.licence} | "
            + (f"`{pair.drafter}`" if "/" in pair.drafter else pair.drafter)
            + f" | {pair.method}{'' if pair.thinking else ', without reasoning'} |"
            + f" {pair.acceptance_length:.2f} | {pair.verified} |"
            for pair in KNOWN_PAIRS
        ),
    ]
