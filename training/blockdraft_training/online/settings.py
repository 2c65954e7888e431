"""What learning while serving is told."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_models.cache import default_cache_dir
from blockdraft_runtime.configuration.definition import check, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET, Dtype
from blockdraft_training.settings import DFlashSettings

# A drafter that drafts well is changed little by little; one made of the target's layers has
# everything to learn, at the rate of `train dflash`.
_RATE, _FIRST_RATE = 2e-4, 6e-4


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """Where the drafter records and finds its versions."""

    target: str = setting(
        DEFAULT_TARGET,
        "target model: a known name, a directory, a `.gguf` file or a hub id",
        metavar="SPEC",
    )
    directory: Path | None = setting(
        None,
        "folder of the recordings, the versions and the candidate; unset: that of the target in "
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
        " nothing is computed while they decode",
        metavar="URL",
    )
    settle_seconds: float = setting(
        0.5, "how long nothing must have been decoded before a step", minimum=0
    )
    threads: int | None = setting(
        None, "cores that a step may use on CPU; unset: all, at the lowest priority", minimum=1
    )
    learning_rate: float | None = setting(
        None,
        f"once warmed up; it stays there; unset: {_RATE:g}, or {_FIRST_RATE:g} where it began "
        "with the target's own layers",
        above=0,
    )
    warmup_steps: int = setting(20, "steps with a linearly rising rate", minimum=1)
    batch_size: int = setting(4, "sequences per step", minimum=1)
    micro_batch_size: int = setting(
        2, "sequences at once: between them, a step waits for what is decoded", minimum=1
    )
    blocks_per_sequence: int = setting(16, "random anchors per sequence and step", minimum=1)
    max_length: int = setting(
        512, "of longer sequences, so many tokens around the answer's beginning", minimum=16
    )
    passes: int = setting(
        32, "how often a recording is learned from before newer ones are waited for", minimum=1
    )
    slice_mib: int = setting(128, "recordings held in memory at once", minimum=1)
    held_out_share: float = setting(
        0.1, "share of the prompts whose answers are never learned from", above=0, maximum=0.5
    )
    held_out_sequences: int = setting(
        64,
        "newest held-out sequences that candidate and current version are compared on",
        minimum=8,
    )
    first_look: int = setting(
        60,
        "steps before the first comparison; the later ones are further and further apart",
        minimum=1,
    )
    confidence: float = setting(
        0.95, "that a promoted version is better than the one before", above=0.5, maximum=0.9999
    )
    least_gain: float = setting(
        0.02, "share by which τ must be higher: a swap is not free", minimum=0
    )
    paying: float = setting(
        1.2, "τ from which a drafter made from nothing pays", metavar="TAU", above=1
    )
    keep: int = setting(5, "newest versions that are kept", minimum=1)
    checkpoint_every: int = setting(20, "steps between checkpoints of the candidate", minimum=1)
    idle_seconds: float = setting(
        5.0, "how long to wait for new recordings, and after a full disk", above=0
    )
    layers: int = setting(2, "draft layers of a drafter made from nothing", minimum=1)
    block_size: int = setting(8, "its tokens per block, the anchor included", minimum=2)
    feature_layers: tuple[int, ...] = setting(
        (), "its target layers; unset: five, spread evenly", metavar="I,J,...", separator=","
    )
    hot_vocabulary: int = setting(8192, "ids that it can propose; 0: all", minimum=0)
    dtype: Dtype = setting("auto", "of activations; `auto` is float32 on CPU, bfloat16 elsewhere")
    seed: int = setting(0, "of slices and anchors", minimum=0)

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: Naming the setting.
        """
        check(self)
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"--batch-size {self.batch_size} must be a multiple of --micro-batch-size"
                f" {self.micro_batch_size}"
            )

    def rate(self, *, from_nothing: bool) -> float:
        """Return the learning rate of a candidate.

        Args:
            from_nothing: Whether it goes back to a drafter that was made here.
        """
        return self.learning_rate or (_FIRST_RATE if from_nothing else _RATE)

    def as_run(self, directory: Path) -> DFlashSettings:
        """Return what the steps read, in the form of a run of `train dflash`."""
        return DFlashSettings(
            corpus=(directory / "recordings",),
            output=directory / "candidate",
            target=self.target,
            init="target",
            feature_layers=self.feature_layers,
            layers=self.layers,
            block_size=self.block_size,
            sample_from_anchor=True,
            batch_size=self.batch_size,
            blocks_per_sequence=self.blocks_per_sequence,
            # Recordings know no teacher but the token that was served.
            distillation=0.0,
            hot_vocabulary=self.hot_vocabulary,
            dtype=self.dtype,
            seed=self.seed,
        )
