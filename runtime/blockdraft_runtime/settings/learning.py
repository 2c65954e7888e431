"""What a drafter that learns while it serves is told."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_runtime.configuration.definition import check, setting


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Whether sequences are recorded to learn from, where, and how many."""

    enabled: bool = setting(
        False,
        "record sequences on disk to learn from them, and take over better weights as they are "
        "promoted; see docs/learning.md",
        flag="learn",
    )
    directory: Path | None = setting(
        None,
        "folder of the recordings and of the drafter's versions; unset: one for each target in "
        "`learn` in the folder of BLOCKDRAFT_CACHE",
        flag="learn-dir",
        metavar="DIR",
    )
    limit_bytes: int = setting(
        4 << 30,
        "most bytes of recordings; the oldest are deleted first",
        flag="learn-limit",
        metavar="BYTES",
        minimum=1,
    )
    share: float = setting(
        1.0,
        "share of the sequences to record",
        flag="learn-share",
        metavar="SHARE",
        above=0,
        maximum=1,
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
