"""The settings of the drafter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blockdraft_runtime.configuration.definition import check, group, optional_group, setting
from blockdraft_runtime.settings.process import (
    DEFAULT_TARGET,
    DTYPE_HELP,
    MODEL_LEN_HELP,
    SEQUENCES_HELP,
    TARGET_HELP,
    Dtype,
    PeerTlsSettings,
    ProcessSettings,
    Size,
    parse_size,
)

SentForm = Literal["auto", "projected", "raw"]

DRAFTER_NAMES = ("auto", "dflash", "eagle3", "random", "random-eagle3")
"""Values of `--drafter` besides a directory or a hub id; a seed may follow the last two."""
TRAINED_WITHOUT_THINKING = ("qwen/qwen3-4b", "qwen/qwen3-8b")
"""Hub ids, in lower case, of targets whose drafter of `auto` was trained without thinking."""

# The exit status of `blockdraft drafter --find` if there is none for the target.
NO_DRAFTER_STATUS = 3


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Settings of a drafter that learns while it serves, and of its training samples."""

    enabled: bool = setting(
        False,
        "keep training samples of sequences on disk, and draft with the weights learned from them; "
        "see docs/learning.md",
        flag="learn",
        common=True,
    )
    directory: Path | None = setting(
        None,
        "folder of the training samples and of the drafter's versions; unset: one for each target "
        "in `learn` in the folder of BLOCKDRAFT_CACHE",
        flag="learn-dir",
    )
    limit_bytes: int = setting(
        Size(4 << 30),
        "limit of the training samples on disk, such as `4GiB`; the oldest are deleted first",
        flag="learn-limit",
        metavar="SIZE",
        parse=parse_size,
        minimum=1,
    )
    share: float = setting(
        1.0,
        "share of the sequences that become training samples",
        flag="learn-share",
        above=0,
        maximum=1,
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """All settings of the drafter: what it loads and how much it can hold."""

    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", common=True)
    drafter: str = setting(
        "auto",
        "draft model: `auto`, the one known for this target; `dflash` or `eagle3`, the included "
        "one; a directory or hub id; `random[:SEED]` or `random-eagle3[:SEED]`, untrained",
        common=True,
    )
    max_sequences: int = setting(16, SEQUENCES_HELP, minimum=1)
    max_model_len: int | None = setting(None, MODEL_LEN_HELP, minimum=1)
    max_feature_rows: int = 256  # most feature rows per sequence in one request
    feature_form: SentForm = setting(
        "auto",
        "what the verifier sends of a position: outputs of the target's layers (`raw`), or the "
        "drafter's smaller projection of them; `auto` is `raw` only where a drafter is learned "
        "from nothing",
    )
    block_size: int = setting(
        8,
        "block of a random drafter, the anchor included, and of an EAGLE-3 checkpoint that does "
        "not say",
        minimum=2,
    )
    draft_layers: int = 2  # layers of a random DFlash drafter
    dtype: Dtype = setting("auto", DTYPE_HELP, common=True)
    compilation_cache: Path | None = setting(
        None,
        "folder that keeps compiled executables; unset: `xla` in the folder of BLOCKDRAFT_CACHE",
    )
    find: bool = setting(
        False,
        "serve nothing: print where the drafter is stored, downloading it if needed; exit with 3 "
        "if there is none for the target",
    )
    learning: LearningSettings = group(LearningSettings)
    peer_tls: PeerTlsSettings | None = optional_group()
    process: ProcessSettings = group(
        lambda: ProcessSettings("unix:/tmp/blockdraft-drafter.sock"), without=("control",)
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
