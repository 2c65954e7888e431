"""What a training run is told."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What a run of any method is told.

    Attributes:
        corpus: Corpora of the target's answers.
        output: Directory of the run: checkpoints, history, plot and the drafter.
        target: Directory, .gguf file, hub id or the default's name.
        init: Where weights start: "target" (copies of its layers), "random", or a drafter's
            directory.
        feature_layers: Target layers whose outputs make a feature; empty for the method's own
            choice.
        block_size: Tokens per block, the anchor included.
        steps: Optimizer steps.
        batch_size: Sequences per step, over all devices.
        blocks_per_sequence: Anchors drawn from each sequence.
        max_length: Longer rows are cut to this many tokens; None for the longest row's.
        learning_rate: Peak.
        warmup_share: Of the steps, linear.
        weight_decay: Of AdamW.
        decay: γ of the position weights; None for the published one.
        distillation: Share of the target's distribution in the labels.
        hot_vocabulary: Size of the draft vocabulary, the corpus' most frequent ids: what the loss
            runs over and the drafter can propose; 0 for all.
        validation_rows: Rows held out to measure acceptance.
        checkpoint_every: Steps between checkpoints.
        report_every: Steps between readings of the metrics.
        online: Compute features in each step instead of keeping them on disk.
        features: Directory of kept features; None for one inside `output`.
        dtype: Of activations: float32, bfloat16 or auto.
        seed: Of weights, batches and anchors.
    """

    corpus: tuple[Path, ...]
    output: Path
    target: str = "smollm2-135m"
    init: str = "target"
    feature_layers: tuple[int, ...] = ()
    block_size: int = 16
    steps: int = 10_000
    batch_size: int = 16
    blocks_per_sequence: int = 64
    max_length: int | None = None
    learning_rate: float = 6e-4
    warmup_share: float = 0.04
    weight_decay: float = 0.01
    decay: float | None = None
    distillation: float = 0.5
    hot_vocabulary: int = 8192
    validation_rows: int = 32
    checkpoint_every: int = 500
    report_every: int = 50
    online: bool = False
    features: Path | None = None
    dtype: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no run can do.

        Raises:
            ValueError: Naming the setting.
        """
        if not self.corpus:
            raise ValueError("corpus must name at least one file")
        for name in (
            "steps",
            "batch_size",
            "blocks_per_sequence",
            "checkpoint_every",
            "report_every",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.block_size < 2:
            raise ValueError(f"block_size must be at least 2, got {self.block_size}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        for name in ("warmup_share", "distillation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name in ("validation_rows", "hot_vocabulary", "weight_decay", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

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
    """A run of `blockdraft train dflash`.

    Attributes:
        copied_layers: Target layers that the draft layers start from, if they do; their number is
            the number of draft layers.
        layers: Draft layers of a random start.
        sample_from_anchor: Whether the anchor's slot drafts too (`DFlashConfig`).
        markov_rank: Rank of the bias by the token before; 0 for none.
    """

    copied_layers: tuple[int, ...] = ()
    layers: int = 2
    sample_from_anchor: bool = False
    markov_rank: int = 0

    def __post_init__(self) -> None:
        """Refuse what no run can do.

        Raises:
            ValueError: Naming the setting.
        """
        # Not `super()`: a slotted dataclass is another class than the one it was written as.
        TrainSettings.__post_init__(self)
        if self.layers < 1:
            raise ValueError(f"layers must be at least 1, got {self.layers}")
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank must not be negative, got {self.markov_rank}")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
