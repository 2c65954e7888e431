"""`blockdraft bench link`: what the link between verifier and drafter costs."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import OutputSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import check, group, setting

TransportName = Literal["shared-memory", "unix", "tcp"]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What the measurement is told."""

    width: tuple[int, ...] = setting(
        (2880, 4096, 20480),
        "one or more numbers of elements of a feature; each has two bytes",
        minimum=1,
        distinct=True,
    )
    rows: int = setting(
        5, "newly committed positions of each sequence, whose features a step sends", minimum=1
    )
    sequences: tuple[int, ...] = setting(
        (1, 8, 32, 64), "one or more numbers of sequences", minimum=1, distinct=True
    )
    transport: tuple[TransportName, ...] = setting(
        ("shared-memory",),
        "one or more ways between the processes: a unix socket with features in shared memory, as "
        "`serve` uses it, or with features in the messages; `tcp`, over loopback, is what a "
        "drafter on another host would use",
        distinct=True,
    )
    draft_length: int = setting(15, "tokens that are proposed for each sequence", minimum=1)
    runs: int = setting(50, "timed round trips of each point, in rounds over all", minimum=1)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


CONFIGURATION = Configuration("bench link", LinkSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: LinkSettings, run: Run) -> Outcome:
    """Start the drafters and measure."""
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.link.measure import measure_link

    return measure_link(settings, run)
