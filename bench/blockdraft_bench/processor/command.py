"""`blockdraft bench processor`: what this processor makes of bfloat16 and of drafting."""

import sys
from dataclasses import dataclass

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import DRAFTER_HELP, OutputSettings
from blockdraft_models.processor import usable_cores
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import check, group, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """What the measurement is told."""

    cores: tuple[int, ...] = setting(
        (),
        "one or more numbers of cores, each measured in a process of its own that may use only as "
        "many; unset: all that this process may use",
        minimum=1,
        distinct=True,
    )
    target: str = setting(
        DEFAULT_TARGET,
        "target model: a known name, a directory, a `.gguf` file or a hub id",
        metavar="SPEC",
    )
    drafter: str = setting("auto", DRAFTER_HELP, metavar="SPEC")
    max_sequences: int = setting(
        16, "as of `blockdraft serve`: the more, the more steps are compared", minimum=1
    )
    max_tokens: int = setting(96, "most tokens of an answer", minimum=2)
    rounds: int = setting(3, "timed answers of each kind, plain and drafted in turn", minimum=1)
    quick: bool = setting(
        False, "compare as few positions as every start does; unset: as many as on request"
    )
    again: bool = setting(
        False, "measure forms of products and the gain of bfloat16 anew; what is kept stays"
    )
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


CONFIGURATION = Configuration("bench processor", ProcessorSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: ProcessorSettings, run: Run) -> Outcome:
    """Check the cores and measure."""
    usable = usable_cores()
    if settings.cores and sys.platform != "linux":
        raise BenchUsageError("--cores needs Linux")
    if max(settings.cores, default=1) > usable:
        raise BenchUsageError(f"--cores must be at most {usable}, as many as may be used here")
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.processor.measure import measure_rows

    return measure_rows(settings, run)
