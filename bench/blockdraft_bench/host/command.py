"""`blockdraft bench host`: the engine's own time per step."""

from dataclasses import dataclass

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import OutputSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import check, group, setting
from blockdraft_runtime.settings.verifier import DraftPolicy


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What the measurement is told."""

    sequences: tuple[int, ...] = setting(
        (1, 8, 64, 128), "one or more numbers of sequences", minimum=1, distinct=True
    )
    width: int = setting(4096, "elements of a feature; each has two bytes", minimum=1)
    block_size: int = setting(16, "tokens of a drafted block, the anchor included", minimum=2)
    accepted: int = setting(
        4,
        "drafted tokens that a step accepts of each sequence, on average; less than --block-size",
        minimum=1,
    )
    draft_policy: DraftPolicy = setting(
        "adaptive",
        "`adaptive`: the engine chooses the draft length, here always a whole block, and its "
        "choosing counts; `fixed`: it need not choose",
    )
    runs: int = setting(50, "timed steps of each point, in rounds over all", minimum=1)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


CONFIGURATION = Configuration("bench host", HostSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: HostSettings, run: Run) -> Outcome:
    """Make the engines and measure."""
    if settings.accepted >= settings.block_size:
        raise BenchUsageError(
            f"--accepted must be less than --block-size ({settings.block_size}), "
            f"got {settings.accepted}"
        )
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.host.measure import measure_host

    return measure_host(settings, run)
