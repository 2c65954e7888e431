"""From datasets to the token ids the target sees, cut where they are too many."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_bench.datasets import choose_samples, read_datasets
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.settings import PromptSettings
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from blockdraft_models.weights.resolve import resolve_target


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """A sample as the target sees it: up to where the completion starts, chat template included."""

    sample_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts chosen from one dataset."""

    dataset: str
    prompts: tuple[SamplePrompt, ...]


@dataclass(frozen=True, slots=True)
class PreparedPrompts:
    """A target, its tokenizer, and the prompts of each dataset."""

    target: Path
    tokenizer: Tokenizer
    prompt_sets: list[PromptSet]

    @property
    def count(self) -> int:
        """Number of prompts."""
        return sum(len(prompt_set.prompts) for prompt_set in self.prompt_sets)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        return frozenset(self.tokenizer.eos_token_ids)


def prepare(settings: PromptSettings) -> PreparedPrompts:
    """Return the prompts that the settings choose from their datasets."""
    datasets = read_datasets(settings.dataset, settings.datasets_dir)
    target = resolve_target(settings.target)
    tokenizer = load_tokenizer(target)
    prompt_sets = []
    for dataset in datasets:
        chosen = choose_samples(dataset.samples, settings.samples, settings.seed)
        prompts = [
            SamplePrompt(
                sample.sample_id, chat_prompt(sample.text, tokenizer, settings.max_prompt_tokens)
            )
            for sample in chosen
        ]
        prompt_sets.append(PromptSet(dataset.name, tuple(prompts)))
    return PreparedPrompts(target, tokenizer, prompt_sets)


def chat_prompt(text: str, tokenizer: Tokenizer, max_tokens: int) -> tuple[int, ...]:
    """Return the token ids of a user message in the target's chat template.

    A message that is too long loses its end: only the longest beginning stays with which the whole
    prompt fits. The template stays whole, so the prompt still ends where the completion is to
    begin. `BenchUsageError` if not even an empty message fits.
    """

    def encoded(length: int) -> tuple[int, ...]:
        return tuple(tokenizer.encode_chat([{"role": "user", "content": text[:length]}]))

    whole = encoded(len(text))
    if len(whole) <= max_tokens:
        return whole
    best = encoded(0)
    if len(best) > max_tokens:
        raise BenchUsageError(
            f"prompts of {max_tokens} tokens cannot hold the chat template, which takes {len(best)}"
        )
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        tried = encoded(middle)
        if len(tried) <= max_tokens:
            fits, best = middle, tried
        else:
            too_long = middle
    return best
