"""`blockdraft bench slice`: what announcing a step to the other processes of a slice costs."""

from dataclasses import dataclass

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import OutputSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import check, group, setting


@dataclass(frozen=True, slots=True)
class SliceBenchSettings:
    """What the measurement is told."""

    bytes: tuple[int, ...] = setting(
        (1_000, 40_000, 600_000),
        "one or more sizes of a step's inputs",
        minimum=1,
        distinct=True,
    )
    followers: int = setting(1, "processes that each step is announced to", minimum=1)
    runs: int = setting(300, "timed steps of each size, in rounds over all", minimum=1)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


CONFIGURATION = Configuration("bench slice", SliceBenchSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: SliceBenchSettings, run: Run) -> Outcome:
    """Start the followers and measure."""
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.slice.measure import measure_slice

    return measure_slice(settings, run)
