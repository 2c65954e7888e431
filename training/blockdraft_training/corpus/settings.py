"""What a corpus is to be; imports nothing heavy, so that `--help` stays quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft_runtime.configuration.definition import check, required, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET, Dtype
from blockdraft_training.corpus.contamination import ExcludedTexts
from blockdraft_training.corpus.prompts import PromptFile


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """Which prompts are answered by which target, and how."""

    output: Path = required(
        "the `.jsonl` file to write, or to go on with; `NAME.manifest.json` is written beside "
        "`NAME.jsonl`",
        metavar="FILE",
    )
    target: str = setting(
        DEFAULT_TARGET,
        "target model: a known name, a directory, a `.gguf` file or a hub id",
        metavar="SPEC",
    )
    prompts: tuple[PromptFile, ...] = setting(
        (),
        "files of prompts to answer, `.jsonl` or `.jsonl.gz`; NAME is their source, else the file "
        "is",
        metavar="[NAME=]FILE",
        parse=PromptFile.parse,
    )
    self_chat: int = setting(
        0,
        "so many prompts the target makes up itself: the user's turn, sampled at temperature 1; "
        "kept in `NAME.self-chat.jsonl`",
        minimum=0,
    )
    openings: tuple[str, ...] = setting(
        ("",),
        "how the user begins in the first turn of those, such as `Write a Python function`; "
        "several take turns",
        flag="self-prefix",
    )
    turns: int = setting(
        1,
        "most turns of a conversation; each later one is a row of its own. What the user says then "
        "is in the prompt file, or else the target makes it up, as with --self-chat",
        minimum=1,
    )
    exclude: tuple[Path, ...] = setting(
        (),
        "files of prompts, the test sets: prompts that occur in them are dropped",
        metavar="FILE",
    )
    licences: tuple[str, ...] = setting(
        (),
        "licence of the prompts, for the manifest; `NAME=TEXT` for those of one source",
        flag="licence",
        metavar="[NAME=]TEXT",
    )
    greedy_share: float = setting(0.7, "share of rows answered greedily", minimum=0, maximum=1)
    temperature: float = setting(0.7, "of the other rows", above=0)
    seed: int = setting(
        0,
        "all randomness follows from it: each row's own seed is made from this and the row's id",
        minimum=0,
    )
    max_tokens: int = setting(256, "most tokens of an answer; a longer one is cut", minimum=1)
    max_prompt_tokens: int = setting(
        256, "most tokens of a prompt, chat template included; a longer one is dropped", minimum=1
    )
    limit: int | None = setting(
        None, "most conversations, those of --prompts first; unset: all", minimum=1
    )
    batch_size: int = setting(
        32, "answers in the making at once; changes the speed, not the answers", minimum=1
    )
    dtype: Dtype = setting(
        "auto", "element type of weights and cache; `auto` is bfloat16 on TPU, float32 elsewhere"
    )
    compilation_cache: Path | None = setting(
        None,
        "folder that keeps compiled executables; unset: `xla` in the folder of BLOCKDRAFT_CACHE",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        check(self)
        if self.output.suffix != ".jsonl":
            raise ValueError(f"--output must be a .jsonl file, got {self.output}")
        if not self.prompts and not self.self_chat:
            raise ValueError("there is nothing to answer: give --prompts or --self-chat")
        if not self.openings:
            raise ValueError("--self-prefix must be at least one text; it may be empty")

    def licence(self, source: str) -> str | None:
        """Return the licence of the prompts of one source, or None if it was not given."""
        by_source: dict[str, str] = {}
        for text in self.licences:
            name, separator, licence = text.partition("=")
            by_source[name if separator else ""] = licence if separator else text
        return by_source.get(source, by_source.get(""))

    def sampling(self, *, dtype: str, excluded: ExcludedTexts) -> dict[str, Any]:
        """Return what every row of the corpus depends on; a corpus has one such for all rows.

        Number of prompts, turns, limit and batch size are not part of it: a corpus may grow.

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
