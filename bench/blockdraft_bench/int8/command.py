"""`blockdraft bench int8`: how far int8 weights move a target's logits."""

from dataclasses import dataclass

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import OutputSettings, PromptSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import group, setting
from blockdraft_runtime.settings.process import Dtype


@dataclass(frozen=True, slots=True)
class Int8Settings:
    """What the measurement is told."""

    prompts: PromptSettings = group(lambda: PromptSettings(samples=4, max_prompt_tokens=384))
    dtype: Dtype = setting("auto", "of what is not int8; `auto` as when serving")
    result: OutputSettings = group(OutputSettings)


CONFIGURATION = Configuration("bench int8", Int8Settings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: Int8Settings, run: Run) -> Outcome:
    """Read the datasets and measure."""
    datasets = settings.prompts.read()
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.int8.measure import load_and_measure

    return load_and_measure(settings, datasets, run)
