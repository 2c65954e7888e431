"""The published pairs of target and drafter that load here; imports nothing.

Sources: README of z-lab/dflash and tables 1, 3, 5 and 11 of arXiv 2602.06036, README and table 1 of
deepseek-ai/DeepSpec, and the model cards on the hub.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A target, and a drafter published for it."""

    target: str  # hub id, or a known name
    licence: str  # of the target
    drafter: str  # hub id, or "included"
    method: str
    verified: str  # extent to which the pair was tried
    # τ of whole blocks on HumanEval, greedy and at T = 1, as published with the drafter; of ours,
    # as measured. None where nothing is published.
    acceptance_length: float | None = None
    sampled_acceptance_length: float | None = None
    thinking: bool = True  # False if its publisher says that it was trained without reasoning


_READ = "read"  # the families are tested with small random weights (docs/models.md)
_COMPILED = "compiled"  # for TPUs, too
_APACHE = "Apache-2.0"


def _dflash(
    target: str,
    drafter: str,
    acceptance_length: float,
    sampled_acceptance_length: float | None = None,
    *,
    licence: str = _APACHE,
    verified: str = _COMPILED,
    thinking: bool = True,
) -> KnownPair:
    lengths = acceptance_length, sampled_acceptance_length
    return KnownPair(target, licence, f"z-lab/{drafter}", "DFlash", verified, *lengths, thinking)


def _deepspec(size: str, dspark: float, dflash: float) -> tuple[KnownPair, KnownPair]:
    """Return the pairs of a Qwen3 with DeepSpec's drafters of 7 tokens, of these τ at T = 1."""
    qwen3 = f"Qwen/Qwen3-{size}", _APACHE
    name = f"qwen3_{size.lower()}_block7"
    return (
        KnownPair(*qwen3, f"deepseek-ai/dspark_{name}", "DSpark", _COMPILED, None, dspark, False),
        KnownPair(*qwen3, f"deepseek-ai/dflash_{name}", "DFlash", _COMPILED, None, dflash, False),
    )


# Of several drafters of a target, `auto` takes the first: that of the highest τ at T = 1, as not
# all publishers say the greedy one. Blocks of 16 and of 8 are compared whole, since the cost model
# drafts whole blocks while few sequences run: a step has 16 tokens anyway (ADR 0019).
KNOWN_PAIRS: tuple[KnownPair, ...] = (
    KnownPair("smollm2-135m", _APACHE, "included", "EAGLE-3, DFlash", "run", 3.90),
    _dflash("Qwen/Qwen3-4B", "Qwen3-4B-DFlash-b16", 6.64, 6.04, thinking=False),
    *_deepspec("4B", 5.38, 4.74),
    KnownPair("Qwen/Qwen3-4B", _APACHE, "RedHatAI/Qwen3-4B-speculator.dflash2", "DFlash 2", _READ),
    _dflash("Qwen/Qwen3-8B", "Qwen3-8B-DFlash-b16", 6.50, 5.52, thinking=False),
    *_deepspec("8B", 5.52, 4.64),
    KnownPair(
        "Qwen/Qwen3-8B",
        _APACHE,
        "RedHatAI/Qwen3-8B-speculator.dflash2",
        "DFlash 2",
        _READ,
        thinking=False,
    ),
    *_deepspec("14B", 5.43, 4.59),
    _dflash("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B-DFlash", 8.09),
    _dflash("openai/gpt-oss-20b", "gpt-oss-20b-DFlash", 4.3),
    _dflash("openai/gpt-oss-120b", "gpt-oss-120b-DFlash", 4.4, verified=_READ),
    _dflash(
        "meta-llama/Llama-3.1-8B-Instruct",
        "LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        4.91,
        licence="Llama 3.1",
    ),
)

# Their targets by shape (`shape_fingerprint`), which tells copies under other names.
TARGETS_BY_SHAPE = {
    "1f4d6b8a45e9019e": "Qwen/Qwen3-4B",
    "f02e6475e557bcac": "Qwen/Qwen3-8B",
    "37e4feef689471ea": "Qwen/Qwen3-14B",
    "5961a4c97cc006ce": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "8043d7cee78078e7": "openai/gpt-oss-20b",
    "6ee36c89a84efc19": "openai/gpt-oss-120b",
    "cf5a7b5befbff749": "meta-llama/Llama-3.1-8B-Instruct",
}

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
        "| Target | Licence | Drafter | Method | greedy τ | at T = 1 | Verified |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| `{pair.target}` | {pair.licence} | "
            + (f"`{pair.drafter}`" if "/" in pair.drafter else pair.drafter)
            + f" | {pair.method}{'' if pair.thinking else ', without reasoning'} |"
            + f" {_length(pair.acceptance_length)} | {_length(pair.sampled_acceptance_length)} |"
            + f" {pair.verified} |"
            for pair in KNOWN_PAIRS
        ),
    ]


def _length(acceptance_length: float | None) -> str:
    return "" if acceptance_length is None else f"{acceptance_length:.2f}"
