"""The settings of corpora and training; no heavy imports, so that `--help` stays quick."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from blockdraft_runtime.configuration.definition import check, required, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET, TARGET_HELP, Dtype

Optimizer = Literal["adamw", "muon"]
PositionWeights = Literal["decay", "survival"]

# Share of the steps with a linearly rising rate (arXiv 2602.06036, appendix A.1).
WARMUP_SHARE = 0.04


def without_suffixes(name: str) -> str:
    """Return the name of a file of lines without `.jsonl`, `.jsonl.gz` or `.jsonl.xz`."""
    return name.removesuffix(".gz").removesuffix(".xz").removesuffix(".jsonl")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Prompts of one domain: a file `.jsonl`, also compressed to `.gz` or `.xz`."""

    source: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> "PromptFile":
        """Read `NAME=FILE`, or `FILE` alone, whose own name becomes the source."""
        name, separator, path = text.partition("=")
        if separator and not Path(text).exists():
            return cls(name, Path(path))
        return cls(without_suffixes(Path(text).name), Path(text))

    def __str__(self) -> str:
        """Return `NAME=FILE`, which `parse` reads."""
        return f"{self.source}={self.path}"


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """Settings of a corpus: the target, its prompts and the sampling of its completions."""

    output: Path = required(
        "the `.jsonl` file to write, or to go on with; `NAME.manifest.json` is written beside "
        "`NAME.jsonl`",
        metavar="FILE",
    )
    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", metavar="SPEC")
    prompts: tuple[PromptFile, ...] = setting(
        (),
        "files of prompts to answer, `.jsonl`, `.jsonl.gz` or `.jsonl.xz`; NAME is their source, "
        "else the file is",
        metavar="[NAME=]FILE",
        parse=PromptFile.parse,
    )
    self_chat: int = setting(
        0,
        "number of prompts that the target makes up itself: the user's turn, sampled at "
        "temperature 1; kept in `NAME.self-chat.jsonl`",
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
        "maximum turns of a conversation, each a row of its own; what the user says in later ones "
        "is in the prompt file, or the target makes it up",
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
    max_tokens: int = setting(256, "maximum tokens of a completion; a longer one is cut", minimum=1)
    max_prompt_tokens: int = setting(
        256,
        "maximum tokens of a prompt, chat template included; a longer one is dropped",
        minimum=1,
    )
    limit: int | None = setting(
        None, "maximum conversations, those of --prompts first; unset: all", minimum=1
    )
    batch_size: int = setting(
        32, "completions in the making at once; changes the speed, not the completions", minimum=1
    )
    dtype: Dtype = setting(
        "auto", "element type of weights and cache; `auto` is bfloat16 on TPU, float32 elsewhere"
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


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The settings of a run of any method."""

    corpus: tuple[Path, ...] = required(
        "one or more corpora, JSONL files, of this target's completions", metavar="FILE"
    )
    output: Path = required(
        "folder of the run: checkpoints, `history.jsonl`, `history.png`, `drafter/`; a run that "
        "was begun there is resumed",
        metavar="DIR",
    )
    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", metavar="SPEC")
    init: str = setting(
        "target",
        "where weights start: `target` (copies of its layers), `random`, or a drafter's directory",
        metavar="START",
    )
    feature_layers: tuple[int, ...] = setting(
        (),
        "target layers whose outputs make a feature; unset: five, spread evenly, or for EAGLE-3 "
        "1, L/2 - 1 and L - 4 of L, as published",
        metavar="I,J,...",
        separator=",",
    )
    block_size: int = setting(16, "tokens per block, the anchor included", minimum=2)
    steps: int = setting(10_000, "optimizer steps", minimum=1)
    batch_size: int = setting(16, "sequences per step, over all devices", minimum=1)
    blocks_per_sequence: int = setting(64, "random anchors per sequence and step", minimum=1)
    max_length: int | None = setting(
        None, "cut longer rows to this many tokens; unset: as long as the longest", minimum=1
    )
    learning_rate: float = setting(
        6e-4, "the peak, which the first 4 % of the steps rise to", above=0
    )
    optimizer: Optimizer = setting(
        "adamw", "`muon` orthogonalizes the updates of matrices, and leaves the rest to AdamW"
    )
    weight_decay: float = setting(0.01, "of the optimizer", minimum=0)
    position_weights: PositionWeights = setting(
        "decay",
        "of the drafted positions in the loss: falling as published for the method, or by the "
        "chance that a draft survives until there (`survival`, D-PACE)",
    )
    distillation: float = setting(
        0.5, "share of the target's own distribution in the labels", minimum=0, maximum=1
    )
    hot_vocabulary: int = setting(
        8192,
        "only so many ids, the corpus' most frequent ones, are in the loss and in the drafter's "
        "vocabulary; 0: all",
        minimum=0,
    )
    validation_rows: int = setting(32, "rows held out to measure acceptance", minimum=0)
    checkpoint_every: int = setting(
        500, "steps between checkpoints, each with a validation", minimum=1
    )
    report_every: int = setting(50, "steps between readings", minimum=1)
    online: bool = setting(
        False, "compute features in each step, for accelerators, instead of keeping them on disk"
    )
    features: Path | None = setting(
        None, "folder of kept features; unset: in --output", metavar="DIR"
    )
    dtype: Dtype = setting("auto", "of activations; `auto` is float32 on CPU, bfloat16 elsewhere")
    seed: int = setting(0, "of weights, batches and anchors", minimum=0)

    def __post_init__(self) -> None:
        """Refuse what no run can do."""
        check(self)
        if not self.corpus:
            raise ValueError("--corpus must name at least one file")

    def identity(self) -> dict[str, Any]:
        """Return the values that two runs must share for one to continue the other, as JSON.

        Constants that were settings once stay among them, so that older runs can be continued.
        """
        free = {"corpus", "output", "checkpoint_every", "report_every", "features", "online"}
        values = {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.name not in free
        }
        return {**values, "decay": None, "warmup_share": WARMUP_SHARE}


@dataclass(frozen=True, slots=True)
class DFlashSettings(TrainSettings):
    """A run of `blockdraft train dflash`."""

    layers: int = setting(2, "draft layers, of a start that is no earlier drafter", minimum=1)
    sample_from_anchor: bool = setting(
        False, "let the anchor's slot draft too: one mask fewer per block"
    )
    markov_rank: int = setting(
        0, "rank of a bias on each token by the one before it, as in DSpark; 0: none", minimum=0
    )

    def identity(self) -> dict[str, Any]:
        """Return the values that two runs must share for one to continue the other, as JSON."""
        return {**TrainSettings.identity(self), "copied_layers": []}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
