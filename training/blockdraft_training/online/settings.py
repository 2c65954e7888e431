"""The settings of learning while serving, and its constants."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_models.cache import default_cache_dir
from blockdraft_runtime.configuration.definition import check, setting
from blockdraft_runtime.settings.process import (
    DEFAULT_TARGET,
    METRICS_ADDRESS_HELP,
    TARGET_HELP,
    Dtype,
)
from blockdraft_training.settings import DFlashSettings

# A drafter that drafts well is changed little by little; one made of the target's layers has
# everything to learn, at the rate of `train dflash`.
_RATE, _FIRST_RATE = 2e-4, 6e-4


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sizes and times of learning: constants, except in tests, which have less time."""

    settle_seconds: float = 0.5  # how long nothing must have been decoded before a step
    idle_seconds: float = 5.0  # wait for new samples, and after a full disk
    warmup_steps: int = 20  # with a linearly rising rate
    batch_size: int = 4  # sequences per step, which waits for decoding before it begins
    blocks_per_sequence: int = 16  # random anchors per sequence and step
    passes: int = 32  # how often a sample is learned from before newer ones are waited for
    held_out_share: float = 0.1  # of the prompts, whose completions are never learned from
    held_out_sequences: int = 64  # the newest of them that drafters are compared on
    # Steps before the first evaluation; later ones are further and further apart.
    first_evaluation: int = 60
    least_gain: float = 0.02  # share by which τ must be higher besides: a swap is not free
    paying: float = 1.2  # τ from which a drafter made from nothing pays
    checkpoint_every: int = 20  # steps between checkpoints of the candidate
    keep: int = 5  # newest versions that are kept
    layers: int = 2  # draft layers of a drafter made from nothing
    block_size: int = 8  # its tokens per block, the anchor included
    feature_layers: tuple[int, ...] = ()  # its target layers; empty for five, spread evenly
    hot_vocabulary: int = 8192  # ids that it can draft; 0 for all


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """The folder in which the drafter keeps its samples and versions."""

    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", metavar="SPEC")
    directory: Path | None = setting(
        None,
        "folder of training samples, versions and candidate; unset: that of the target in "
        "`learn` in the folder of BLOCKDRAFT_CACHE, as for `serve`",
        metavar="DIR",
    )

    def directory_for(self, target_fingerprint: str) -> Path:
        """Return the folder."""
        return self.directory or default_cache_dir() / "learn" / target_fingerprint


@dataclass(frozen=True, slots=True)
class LearnSettings(FolderSettings):
    """A process of `blockdraft learn run`."""

    drafter: str = setting(
        "auto",
        "drafter to begin with where no version was promoted: as for `serve`; if there is none, "
        "one is made from the target's own layers",
        metavar="SPEC",
    )
    watch: tuple[str, ...] = setting(
        (),
        "addresses of the Prometheus metrics of verifiers, such as `http://localhost:9101/metrics`:"
        " learning pauses while they decode",
        metavar="URL",
    )
    metrics_port: int | None = setting(
        None, "port of the trainer's own Prometheus metrics", minimum=1
    )
    metrics_address: str = setting("127.0.0.1", METRICS_ADDRESS_HELP)
    threads: int | None = setting(
        None, "cores that a step may use on CPU; unset: all, at the lowest priority", minimum=1
    )
    learning_rate: float | None = setting(
        None,
        f"constant after the warm-up; unset: {_RATE:g}, or {_FIRST_RATE:g} for a drafter that "
        "began with the target's own layers",
        above=0,
    )
    max_length: int = setting(
        512, "of longer sequences, so many tokens around the completion's start", minimum=16
    )
    slice_mib: int = setting(128, "training samples held in memory at once", minimum=1)
    confidence: float = setting(
        0.95, "that a promoted version is better than the one before", above=0.5, maximum=0.9999
    )
    dtype: Dtype = setting("auto", "of activations; `auto` is float32 on CPU, bfloat16 elsewhere")
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def rate(self, from_nothing: bool) -> float:
        """Return the learning rate of a candidate; `from_nothing` as in `Start`."""
        return self.learning_rate or (_FIRST_RATE if from_nothing else _RATE)

    def as_run(self, directory: Path) -> DFlashSettings:
        """Return the settings of the steps, in the form of a run of `train dflash`."""
        schedule = self.schedule
        return DFlashSettings(
            corpus=(directory / "samples",),
            output=directory / "candidate",
            target=self.target,
            init="target",
            feature_layers=schedule.feature_layers,
            layers=schedule.layers,
            block_size=schedule.block_size,
            sample_from_anchor=True,
            batch_size=schedule.batch_size,
            blocks_per_sequence=schedule.blocks_per_sequence,
            # Training samples have no teacher but the token that was served.
            distillation=0.0,
            hot_vocabulary=schedule.hot_vocabulary,
            dtype=self.dtype,
        )
