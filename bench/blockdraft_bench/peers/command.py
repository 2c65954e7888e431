"""`blockdraft bench peers`: other programs and this one, on the same prompts in the same run."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import DRAFTER_HELP, OutputSettings, PromptSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import group, setting
from blockdraft_runtime.settings.process import Dtype


@dataclass(frozen=True, slots=True)
class PeersSettings:
    """What the measurement is told."""

    prompts: PromptSettings = group(lambda: PromptSettings(dataset=("gsm8k", "humaneval")))
    rounds: int = setting(7, "how often every decoder answers every prompt", minimum=1)
    drafter: str = setting(
        "auto", f"of this project's drafted decoding, {DRAFTER_HELP}", metavar="SPEC"
    )
    peer: tuple[Literal["llama.cpp", "transformers"], ...] = setting(
        ("llama.cpp", "transformers"),
        "one or both; what is not there yet is fetched into the cache folder",
        distinct=True,
    )
    dtype: Dtype = setting(
        "auto",
        "element type in this project and in transformers; `auto` as when serving. llama.cpp "
        "computes with bfloat16, with Q8_0 and with the file as it is",
    )
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check what the parts demand of each other."""
        self.prompts.check_timed()


CONFIGURATION = Configuration("bench peers", PeersSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: PeersSettings, run: Run) -> Outcome:
    """Read the datasets and measure."""
    datasets = settings.prompts.read()
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.peers.measure import load_and_measure

    return load_and_measure(settings, datasets, run)
