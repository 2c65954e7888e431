"""What measurements do before they measure; imports jax."""

import argparse
from collections.abc import Sequence

import jax
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from blockdraft_bench.common.datasets import Dataset, choose_samples
from blockdraft_bench.common.prompts import PromptSet, make_prompts
from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_models.weights.embedded import default_cache_dir


def keep_executables() -> None:
    """Keep what is compiled where serving keeps it, so that it is compiled once."""
    jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def shown_progress() -> Progress:
    """Return a progress bar on stderr with counts and the time it took."""
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def chosen_prompts(
    args: argparse.Namespace, datasets: Sequence[Dataset], tokenizer: Tokenizer
) -> list[PromptSet]:
    """Return the prompts that `--samples`, `--seed` and `--max-prompt-tokens` choose.

    Raises:
        BenchUsageError: If not even an empty message fits.
        TokenizerError: If the target has no chat template, or it refuses a message.
    """
    return [
        make_prompts(
            dataset.name,
            choose_samples(dataset.samples, args.samples, args.seed),
            tokenizer,
            args.max_prompt_tokens,
        )
        for dataset in datasets
    ]
