"""`blockdraft bench decode`: plain decoding and draft methods, one answer at a time."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import DRAFTER_HELP, OutputSettings, PromptSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import group, setting
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import DraftPolicy


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """What the measurement is told."""

    prompts: PromptSettings = group(PromptSettings)
    method: tuple[
        Literal["plain", "dflash", "eagle3", "lookup", "dflash+lookup", "eagle3+lookup"], ...
    ] = setting(
        (),
        "one or more; unset: `dflash`, and `eagle3` if its drafter is found; `plain` is always "
        "measured; `lookup` drafts from earlier text alone, or beside a drafter",
        distinct=True,
    )
    dflash: str = setting("dflash", f"the DFlash drafter, {DRAFTER_HELP}", metavar="DRAFTER")
    eagle3: str = setting("eagle3", "the EAGLE-3 drafter, likewise", metavar="DRAFTER")
    block_size: int = setting(
        8, "block of a drafter that is random or leaves it open, the anchor included", minimum=2
    )
    draft_length: int | None = setting(
        None, "tokens of a proposal; unset: all that each block holds beside its anchor", minimum=1
    )
    draft_policy: DraftPolicy = setting(
        "adaptive",
        "`adaptive`: draft as far as measured costs say it pays, as the service does; `fixed`: "
        "always the whole proposal",
    )
    temperature: tuple[float, ...] = setting(
        (0.0,), "one or more, of the target; 0 is greedy", minimum=0, distinct=True
    )
    dtype: Dtype = setting("auto", "of weights, cache and contexts; `auto` as when serving")
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check what the parts demand of each other."""
        self.prompts.check_timed()


CONFIGURATION = Configuration("bench decode", DecodeSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: DecodeSettings, run: Run) -> Outcome:
    """Read the datasets and measure."""
    datasets = settings.prompts.read()
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.decode.measure import load_and_measure

    return load_and_measure(settings, datasets, run)
