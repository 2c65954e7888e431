"""What measurements do before they measure; imports jax."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from blockdraft_bench.common.datasets import Dataset, choose_samples
from blockdraft_bench.common.prompts import PromptSet, make_prompts
from blockdraft_bench.common.settings import PromptSettings
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from blockdraft_models.weights.default_target import default_cache_dir
from blockdraft_models.weights.resolve import resolve_target


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a target is asked.

    Attributes:
        target: Directory or file of the target.
        tokenizer: Its tokenizer.
        prompt_sets: The chosen prompts of each dataset.
    """

    target: Path
    tokenizer: Tokenizer
    prompt_sets: list[PromptSet]

    @property
    def count(self) -> int:
        """Number of prompts."""
        return sum(len(prompt_set.prompts) for prompt_set in self.prompt_sets)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.tokenizer.eos_token_ids)


def prepare(args: argparse.Namespace | PromptSettings, datasets: Sequence[Dataset]) -> Prepared:
    """Return the prompts that `--target`, `--samples`, `--seed`, `--max-prompt-tokens` choose.

    Raises:
        BenchUsageError: If not even an empty message fits.
        ModelError: If there is no such target, it has no chat template, or it refuses a message.
    """
    keep_executables()
    target = resolve_target(args.target)
    tokenizer = load_tokenizer(target)
    return Prepared(target, tokenizer, chosen_prompts(args, datasets, tokenizer))


def keep_executables() -> None:
    """Keep what is compiled where serving keeps it, so that it is compiled once."""
    jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def chosen_prompts(
    args: argparse.Namespace | PromptSettings, datasets: Sequence[Dataset], tokenizer: Tokenizer
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
