"""What a corpus is to be; imports nothing heavy, so that `--help` stays quick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockdraft_training.corpus.contamination import ExcludedTexts
from blockdraft_training.corpus.prompts import PromptFile

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """Which prompts are answered by which target, and how.

    Attributes:
        output: The .jsonl file to write, or to go on with.
        target: Directory, .gguf file, hub id or the default's name.
        prompts: Files of prompts.
        self_chat: Prompts that the target makes up itself.
        openings: How the user begins in those, in turn.
        exclude: Files whose prompts must not occur: the test sets.
        licences: Of the prompts, by source; the name "" stands for all others.
        greedy_share: Share of rows answered greedily.
        temperature: Of the other rows.
        seed: All randomness follows from it.
        max_tokens: Longest answer.
        max_prompt_tokens: Longest prompt, chat template included; longer ones are dropped.
        limit: Most rows; None for all.
        batch_size: Answers in the making at once.
        dtype: Element type to compute in.
    """

    output: Path
    target: str = "smollm2-135m"
    prompts: tuple[PromptFile, ...] = ()
    self_chat: int = 0
    openings: tuple[str, ...] = ("",)
    exclude: tuple[Path, ...] = ()
    licences: Mapping[str, str] = field(default_factory=dict)
    greedy_share: float = 0.7
    temperature: float = 0.7
    seed: int = 0
    max_tokens: int = 256
    max_prompt_tokens: int = 256
    limit: int | None = None
    batch_size: int = 32
    dtype: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if self.output.suffix != ".jsonl":
            raise ValueError(f"the output must be a .jsonl file, got {self.output}")
        if not self.prompts and not self.self_chat:
            raise ValueError("there is nothing to answer: give --prompts or --self-chat")
        if not 0 <= self.greedy_share <= 1:
            raise ValueError(f"greedy_share must be from 0 to 1, got {self.greedy_share}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.self_chat < 0 or self.seed < 0:
            raise ValueError("self_chat and seed must not be negative")
        if not self.openings:
            raise ValueError("there must be at least one opening; it may be empty")
        for name in ("max_tokens", "max_prompt_tokens", "limit", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype}")

    def licence(self, source: str) -> str | None:
        """Return the licence of the prompts of one source, or None if it was not given."""
        return self.licences.get(source, self.licences.get(""))

    def sampling(self, *, dtype: str, excluded: ExcludedTexts) -> dict[str, Any]:
        """Return what every row of the corpus depends on; a corpus has one such for all rows.

        Number of prompts, limit and batch size are not part of it: a corpus may grow.

        Args:
            dtype: What `dtype` stands for on this machine.
            excluded: What must not occur; recorded as count and digest.
        """
        return {
            "greedy_share": self.greedy_share,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "max_prompt_tokens": self.max_prompt_tokens,
            "openings": list(self.openings),
            "dtype": dtype,
            "excluded": {"texts": len(excluded), "digest": excluded.digest},
        }
