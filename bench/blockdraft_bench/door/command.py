"""`blockdraft bench door`: tokens through server and SDK."""

from dataclasses import dataclass

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import OutputSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import check, group, setting


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What the measurement is told."""

    streams: tuple[int, ...] = setting(
        (1, 16, 64),
        "one or more numbers of streams that are read at once",
        minimum=1,
        distinct=True,
    )
    step_tokens: tuple[int, ...] = setting(
        (1, 4),
        "one or more numbers of tokens that a step gains for each stream; all but one are drafted",
        minimum=1,
        distinct=True,
    )
    step_ms: float = setting(
        3.0,
        "milliseconds that the target takes for a step; what the verifier itself takes comes on "
        "top, and what this offers bounds the speed",
        minimum=0,
    )
    tokens: int = setting(256, "tokens of each answer", minimum=2)
    runs: int = setting(5, "measured rounds over all points", minimum=1)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


CONFIGURATION = Configuration("bench door", DoorSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: DoorSettings, run: Run) -> Outcome:
    """Start the processes and measure."""
    # Imported here: `--help` must not wait for gRPC.
    from blockdraft_bench.door.measure import measure_door

    return measure_door(settings, run)
