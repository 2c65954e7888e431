"""`blockdraft bench peers`: other programs and this one, on the same prompts in the same run."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import DRAFTER_HELP, OutputSettings, PromptSettings
from blockdraft_bench.peers.available import TRANSFORMERS, choose_peers
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import group, setting


@dataclass(frozen=True, slots=True)
class PeersSettings:
    """What the measurement is told."""

    prompts: PromptSettings = group(lambda: PromptSettings(dataset=("gsm8k", "humaneval")))
    drafter: str = setting(
        "auto", f"of this project's drafted decoding, {DRAFTER_HELP}", metavar="SPEC"
    )
    peer: tuple[Literal["transformers", "llama.cpp"], ...] = setting(
        (),
        "one or both, which then must take part; unset: all that can, and why the others cannot",
        distinct=True,
    )
    assistant: str | None = setting(
        None,
        "a smaller model with the same tokens, named like a target, for assisted generation in "
        "transformers",
        metavar="SPEC",
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        "element type in transformers; this project computes in float32, llama.cpp in the file's "
        "quantization",
    )
    threads: int | None = setting(
        None,
        "threads of the peers; unset: one for each core this process may use, which is what this "
        "project uses",
        minimum=1,
    )
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check what the parts demand of each other."""
        self.prompts.check_timed()


CONFIGURATION = Configuration("bench peers", PeersSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: PeersSettings, run: Run) -> Outcome:
    """Find out who can take part, and measure."""
    datasets = settings.prompts.read()
    chosen, skipped = choose_peers(settings.peer, resolve_target(settings.prompts.target))
    if settings.assistant is not None and TRANSFORMERS not in chosen:
        reason = skipped.get(TRANSFORMERS, "--peer leaves it out")
        raise BenchUsageError(f"--assistant is for transformers: {reason}")
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.peers.measure import load_and_measure

    return load_and_measure(settings, datasets, run, chosen, skipped)
