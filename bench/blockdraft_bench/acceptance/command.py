"""`blockdraft bench acceptance`: what a drafter gains, by dataset and temperature."""

from dataclasses import dataclass

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import DRAFTER_HELP, OutputSettings, PromptSettings
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import group, setting
from blockdraft_runtime.settings.process import Dtype


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """What the measurement is told."""

    prompts: PromptSettings = group(
        lambda: PromptSettings(samples=32, max_tokens=256, max_prompt_tokens=1024)
    )
    drafter: str = setting("auto", DRAFTER_HELP, metavar="SPEC")
    block_size: int = setting(8, "block of a random drafter, the anchor included", minimum=2)
    draft_length: int | None = setting(
        None, "tokens of a proposal; unset: all that a block holds beside its anchor", minimum=1
    )
    temperature: tuple[float, ...] = setting(
        (0.0, 1.0), "one or more, of the target; 0 is greedy", minimum=0, distinct=True
    )
    top_p: float = setting(
        1.0,
        "probability mass of likeliest tokens that sampling keeps; 1 keeps all",
        above=0,
        maximum=1,
    )
    concurrency: int = setting(
        8, "answers decoded at a time; changes the speed, not the answers", minimum=1
    )
    dtype: Dtype = setting("auto", "of weights, cache and contexts; `auto` as when serving")
    result: OutputSettings = group(OutputSettings)


CONFIGURATION = Configuration("bench acceptance", AcceptanceSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: AcceptanceSettings, run: Run) -> Outcome:
    """Read the datasets and measure."""
    datasets = settings.prompts.read()
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.acceptance.measure import load_and_measure

    return load_and_measure(settings, datasets, run)
