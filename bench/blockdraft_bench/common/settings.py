"""What measurements are told; `blockdraft_runtime.configuration` makes flags and docs of it."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_bench.common.datasets import OWN_SETS, TEST_SETS, Dataset, read_datasets
from blockdraft_runtime.configuration.definition import setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET

RESULTS = Path("bench-results")
DRAFTER_HELP = "as `--drafter` of `blockdraft drafter`"


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Which prompts a target answers, and how far."""

    dataset: tuple[str, ...] = setting(
        TEST_SETS,
        f"one or more of `{'`, `'.join((*TEST_SETS, *OWN_SETS))}`, or files ending in `.jsonl` or "
        "`.jsonl.gz`",
        metavar="SET",
    )
    datasets_dir: Path | None = setting(
        None,
        "where the test sets lie as `NAME.jsonl`; unset: $BLOCKDRAFT_DATASETS or `./datasets`",
        metavar="DIR",
    )
    samples: int = setting(
        8,
        "rows of each dataset, one from each of as many stretches of the file; all if it has no "
        "more",
        minimum=1,
    )
    max_tokens: int = setting(128, "most tokens of an answer", minimum=1)
    max_prompt_tokens: int = setting(
        512,
        "most tokens of a prompt; a longer message loses its end, the chat template stays whole",
        minimum=1,
    )
    target: str = setting(
        DEFAULT_TARGET,
        "target model: a known name, a directory, a `.gguf` file or a hub id",
        metavar="SPEC",
    )
    seed: int = setting(0, "of the choice of rows, of sampling and of intervals")

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and its answer."""
        return self.max_prompt_tokens + self.max_tokens

    def check_timed(self) -> None:
        """Check that answers take time after their first token.

        Raises:
            ValueError: If they are too short.
        """
        if self.max_tokens < 2:
            raise ValueError(f"--max-tokens must be at least 2, got {self.max_tokens}")

    def read(self) -> list[Dataset]:
        """Read the datasets.

        Raises:
            BenchUsageError: If one cannot be found or read, or two have the same name.
        """
        return read_datasets(self.dataset, self.datasets_dir)


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Where the result goes."""

    output: Path | None = setting(
        None,
        f"folder for the files; unset: one under `./{RESULTS}` named after date and settings",
        metavar="DIR",
    )
    json: bool = setting(False, "print the JSON report instead of Markdown")
