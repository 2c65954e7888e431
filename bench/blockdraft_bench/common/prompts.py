"""From a user message to the token ids the target sees, cut where it is too long."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_bench.common.datasets import Sample
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_models.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sample as the target sees it.

    Attributes:
        sample_id: The sample's id.
        token_ids: Up to where the answer starts, chat template included.
    """

    sample_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts chosen from one dataset."""

    dataset: str
    prompts: tuple[Prompt, ...]


def make_prompts(
    dataset: str, samples: Sequence[Sample], tokenizer: Tokenizer, max_tokens: int
) -> PromptSet:
    """Return the prompts of `samples`, each of at most `max_tokens` tokens.

    Raises:
        BenchUsageError: If not even an empty message fits.
        TokenizerError: If the target has no chat template, or it refuses a message.
    """
    prompts = [Prompt(s.sample_id, chat_prompt(s.text, tokenizer, max_tokens)) for s in samples]
    return PromptSet(dataset, tuple(prompts))


def chat_prompt(text: str, tokenizer: Tokenizer, max_tokens: int) -> tuple[int, ...]:
    """Return one user message in the target's chat template.

    A message that is too long loses its end: what is kept is the longest beginning of the text
    with which the whole prompt fits. The template stays whole, so the prompt still ends where
    the answer is to begin.

    Args:
        text: The message.
        tokenizer: The target's.
        max_tokens: Most tokens of the prompt.

    Raises:
        BenchUsageError: If not even an empty message fits.
        TokenizerError: If the target has no chat template, or it refuses the message.
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
