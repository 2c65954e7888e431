"""Measuring decoding: every sample by every method, one method right after another."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft_bench.common.line_store import digest
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.common.timed_answers import DecodedSample, DecodedSet
from blockdraft_bench.decode.store import DecodeStore, SampleKey
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.sample_request import sample_request
from blockdraft_runtime.settings.verifier import DraftPolicy


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How answers are decoded.

    Attributes:
        max_tokens: Most tokens of an answer.
        draft_lengths: Tokens of a whole proposal of each method, 0 for plain decoding.
        draft_policy: Whether the engine may draft less where that is faster.
        stop_token_ids: Tokens that end an answer.
        seed: Of the sampling and of the intervals; each sample has its own, made from this.
    """

    max_tokens: int
    draft_lengths: Mapping[str, int]
    draft_policy: DraftPolicy
    stop_token_ids: frozenset[int]
    seed: int = 0

    def identity(self, models: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
        """Return a digest of all that decides an answer and its time, beside the sample.

        Args:
            models: Target, drafters and element type.
            environment: What `describe_environment` found; its versions and hardware count.
        """
        fields = {
            **asdict(self),
            "stop_token_ids": sorted(self.stop_token_ids),
            "models": models,
            "versions": environment["versions"],
            "hardware": environment["hardware"],
        }
        return digest(fields)


def measure_decode(
    decoder: SampleDecoder,
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    settings: DecodeSettings,
    *,
    store: DecodeStore | None = None,
    on_start: Callable[[str], None] = lambda dataset: None,
    on_sample: Callable[[], None] = lambda: None,
) -> list[DecodedSet]:
    """Decode every prompt by every method at each temperature.

    Args:
        decoder: The methods, warmed up.
        prompt_sets: Prompts by dataset, whose names differ.
        temperatures: Of the target; 0 is greedy.
        settings: How to decode.
        store: Where answers are kept; samples it holds are not decoded again.
        on_start: Told each dataset before its samples.
        on_sample: Called for every sample, also for those the store holds.

    Returns:
        One set for each dataset and temperature, in this order.
    """
    store = DecodeStore("memory") if store is None else store
    turns = itertools.count()
    decoded = []
    for prompt_set, temperature in itertools.product(prompt_sets, temperatures):
        on_start(prompt_set.dataset)
        samples = []
        for prompt in prompt_set.prompts:
            turn = next(turns)
            request = sample_request(
                prompt_set.dataset,
                prompt,
                temperature,
                max_tokens=settings.max_tokens,
                stop_token_ids=settings.stop_token_ids,
                seed=settings.seed,
            )
            key = SampleKey(
                prompt_set.dataset, prompt.sample_id, digest(prompt.token_ids), temperature
            )
            answers = store.get(key)
            if answers is None:
                answers = decoder.decode(request, turn)
                store.add(key, answers)
            samples.append(DecodedSample(request, answers))
            on_sample()
        decoded.append(DecodedSet(prompt_set.dataset, temperature, tuple(samples)))
    return decoded
