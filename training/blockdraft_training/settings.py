"""What a training run is told."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from blockdraft_runtime.configuration.definition import check, required, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET, Dtype

Optimizer = Literal["adamw", "muon"]
PositionWeights = Literal["decay", "survival"]


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What a run of any method is told."""

    corpus: tuple[Path, ...] = required(
        "one or more corpora, JSONL files, of this target's answers", metavar="FILE"
    )
    output: Path = required(
        "folder of the run: checkpoints, `history.jsonl`, `history.png`, `drafter/`; a run that "
        "was begun there is resumed",
        metavar="DIR",
    )
    target: str = setting(
        DEFAULT_TARGET,
        "target model: a known name, a directory, a `.gguf` file or a hub id",
        metavar="SPEC",
    )
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
    learning_rate: float = setting(6e-4, "the peak", above=0)
    warmup_share: float = setting(
        0.04, "share of the steps with a linearly rising rate", minimum=0, maximum=1
    )
    optimizer: Optimizer = setting(
        "adamw", "`muon` orthogonalizes the updates of matrices, and leaves the rest to AdamW"
    )
    weight_decay: float = setting(0.01, "of the optimizer", minimum=0)
    position_weights: PositionWeights = setting(
        "decay",
        "of the drafted positions in the loss: falling as `--decay` says, or by the chance that a "
        "draft survives until there (`survival`, D-PACE)",
    )
    decay: float | None = setting(
        None, "γ of the position weights; unset: as published for the method and block size"
    )
    distillation: float = setting(
        0.5, "share of the target's own distribution in the labels", minimum=0, maximum=1
    )
    hot_vocabulary: int = setting(
        8192,
        "the loss runs over, and the drafter proposes, only so many ids, the corpus' most frequent "
        "ones; 0: any",
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
        """Refuse what no run can do.

        Raises:
            ValueError: Naming the setting.
        """
        check(self)
        if not self.corpus:
            raise ValueError("--corpus must name at least one file")

    def identity(self) -> dict[str, Any]:
        """Return what two runs must share for one to continue the other, as JSON values."""
        free = {"corpus", "output", "checkpoint_every", "report_every", "features", "online"}
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.name not in free
        }


@dataclass(frozen=True, slots=True)
class DFlashSettings(TrainSettings):
    """A run of `blockdraft train dflash`."""

    layers: int = setting(2, "draft layers of a random start", minimum=1)
    copied_layers: tuple[int, ...] = setting(
        (),
        "target layers that the draft layers start from, such as `0,29`; their number is that of "
        "the draft layers; unset: the first and the last ones",
        metavar="I,J,...",
        separator=",",
    )
    sample_from_anchor: bool = setting(
        False, "let the anchor's slot draft too: one mask fewer per block"
    )
    markov_rank: int = setting(
        0, "rank of a bias on each token by the one before it, as in DSpark; 0: none", minimum=0
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
