"""Measuring acceptance: every prompt decoded with and without drafting, then summed up."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from blockdraft_bench.acceptance.statistics import DatasetAcceptance, summarize
from blockdraft_bench.acceptance.store import AnswerKey, AnswerStore
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.line_store import digest
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.sample_request import sample_request


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """How answers are decoded.

    Attributes:
        max_tokens: Most tokens of an answer.
        draft_length: Tokens of a whole proposal.
        stop_token_ids: Tokens that end an answer.
        seed: Of the sampling and of the intervals; each sample has its own, made from this.
    """

    max_tokens: int
    draft_length: int
    stop_token_ids: frozenset[int]
    seed: int = 0

    def identity(self, decoder: InProcessDecoder, dtype: str) -> str:
        """Return a digest of all that decides an answer beside prompt and temperature."""
        fields = {
            **asdict(self),
            "stop_token_ids": sorted(self.stop_token_ids),
            "target": decoder.target.fingerprint,
            "drafter": decoder.drafter.fingerprint,
            "dtype": dtype,
        }
        return digest(fields)


def draft_length(wanted: int | None, block_size: int) -> int:
    """Return the tokens of a whole proposal: `wanted`, or all that a block holds.

    Raises:
        BenchUsageError: If a block does not hold as many.
    """
    most = block_size - 1
    if wanted is not None and not 1 <= wanted <= most:
        raise BenchUsageError(
            f"the draft length must be 1 to {most}, a block of {block_size} less its anchor;"
            f" got {wanted}"
        )
    return most if wanted is None else wanted


def measure_acceptance(
    decoder: InProcessDecoder,
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    settings: AcceptanceSettings,
    *,
    store: AnswerStore | None = None,
    on_answer: Callable[[], None] = lambda: None,
) -> list[DatasetAcceptance]:
    """Decode every prompt with and without drafting at each temperature.

    Args:
        decoder: Target and drafter, warmed up.
        prompt_sets: Prompts by dataset, whose names differ.
        temperatures: Of the target; 0 is greedy.
        settings: How to decode.
        store: Where answers are kept; what it holds is not decoded again.
        on_answer: Called for every answer, also for those the store holds.

    Returns:
        One result for each dataset and temperature, in this order.
    """
    store = AnswerStore("memory") if store is None else store
    results = []
    for prompt_set in prompt_sets:
        for temperature in temperatures:
            drafted, plain = (
                _answers(decoder, prompt_set, temperature, settings, store, on_answer, drafted=mode)
                for mode in (True, False)
            )
            results.append(
                summarize(
                    prompt_set.dataset,
                    temperature,
                    drafted,
                    plain,
                    draft_length=settings.draft_length,
                    seed=settings.seed,
                )
            )
    return results


def _answers(
    decoder: InProcessDecoder,
    prompt_set: PromptSet,
    temperature: float,
    settings: AcceptanceSettings,
    store: AnswerStore,
    on_answer: Callable[[], None],
    *,
    drafted: bool,
) -> list[Answer]:
    """Return the answers to all prompts, in order; decode those the store lacks."""
    keys = [
        AnswerKey(
            prompt_set.dataset, prompt.sample_id, digest(prompt.token_ids), temperature, drafted
        )
        for prompt in prompt_set.prompts
    ]
    missing = []
    for prompt, key in zip(prompt_set.prompts, keys, strict=True):
        if store.get(key) is None:
            request = sample_request(
                prompt_set.dataset,
                prompt,
                temperature,
                max_tokens=settings.max_tokens,
                stop_token_ids=settings.stop_token_ids,
                seed=settings.seed,
            )
            missing.append((key, request))
        else:
            on_answer()

    def keep(index: int, answer: Answer) -> None:
        store.add(missing[index][0], answer)
        on_answer()

    length = settings.draft_length if drafted else 0
    decoder.decode([replace(request, max_draft_tokens=length) for _, request in missing], keep)
    return [answer for key in keys if (answer := store.get(key)) is not None]
