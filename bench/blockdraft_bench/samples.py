"""Samples, the key under which their completions are kept, and the one loop that asks for them."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TypeVar

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_bench.provenance import digest
from blockdraft_bench.store import Key, ResultStore
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.scheduling.sequence import GenerationRequest

T = TypeVar("T")

# Of the untimed completion that each decoder gives first: cold caches and new connections are not
# its speed.
WARM_UP_TOKENS = 16

# The completions to a sample by decoder, in the order in which they were decoded. Those whose times
# are compared are one record, so that they stay together.
Completions = dict[str, CompletionRecord]
CompletionStore = ResultStore[Completions]
DecodeOne = Callable[[GenerationRequest], CompletionRecord]


@dataclass(frozen=True, slots=True)
class Limits:
    """The length, the stop tokens and the seed of completions.

    A sample's own seed depends on this one, its dataset and its id: more samples change no
    completion.
    """

    max_tokens: int
    stop_token_ids: frozenset[int]
    seed: int = 0
    top_p: float = 1.0

    def request(
        self, dataset: str, prompt: SamplePrompt, temperature: float = 0.0
    ) -> GenerationRequest:
        """Return the request for one sample's completion; temperature 0 is greedy."""
        name = f"{self.seed}/{dataset}/{prompt.sample_id}"
        own_seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
        return GenerationRequest(
            prompt.sample_id,
            prompt.token_ids,
            sampling=Sampling(temperature=temperature, top_p=self.top_p, seed=own_seed),
            max_output_tokens=self.max_tokens,
            stop_token_ids=self.stop_token_ids,
        )


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """The request of a sample, one prompt at one temperature.

    Its number, of all samples, decides which decoder is first.
    """

    dataset: str
    number: int
    request: GenerationRequest

    def key(self, decoders: Sequence[str]) -> Key:
        """Return the key of the completions that some decoders give one after another.

        The prompt's digest is in it, so that a changed prompt is a new one.
        """
        request = self.request
        temperature = request.sampling.temperature
        return self.dataset, request.request_id, digest(request.prompt), temperature, *decoders


@dataclass(frozen=True, slots=True)
class Answered:
    """The samples of a dataset at one temperature, in order, with each decoder's completions."""

    dataset: str
    temperature: float
    sample_ids: tuple[str, ...]
    completions: Mapping[str, Sequence[CompletionRecord]]


def in_turn(things: Sequence[T], turn: int) -> tuple[T, ...]:
    """Return things in their order, beginning with number `turn`, modulo their number."""
    first = turn % len(things)
    return (*things[first:], *things[:first])


def answer_all(
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    limits: Limits,
    decoders: Mapping[str, DecodeOne],
    store: CompletionStore,
    *,
    identity: Sequence[str] = (),
    concurrency: int = 1,
    on_sample: Callable[[str], None] = lambda dataset: None,
) -> list[Answered]:
    """Have every prompt answered at each temperature, unless the store has its completions.

    All decoders answer a sample one right after another, so that a disturbance of the machine meets
    them all; which is first changes from sample to sample. `concurrency` samples are answered at a
    time. `identity` belongs to the keys of the store beside the decoders' names. `on_sample` is
    called with the dataset of each sample, also of those that the store has.
    """
    numbers = itertools.count()
    by_dataset = {
        (prompt_set.dataset, temperature): [
            SampleRequest(
                prompt_set.dataset,
                next(numbers),
                limits.request(prompt_set.dataset, prompt, temperature),
            )
            for prompt in prompt_set.prompts
        ]
        for prompt_set, temperature in itertools.product(prompt_sets, temperatures)
    }
    names = (*decoders, *identity)
    samples = [sample for group in by_dataset.values() for sample in group]
    store.announce([sample.key(names) for sample in samples])
    missing = []
    for sample in samples:
        if store.get(sample.key(names)) is None:
            missing.append(sample)
        else:
            on_sample(sample.dataset)

    def answer(sample: SampleRequest) -> Completions:
        order = in_turn([*decoders], sample.number)
        return {name: decoders[name](sample.request) for name in order}

    if missing:
        first = missing[0].request
        tokens = min(WARM_UP_TOKENS, first.max_output_tokens)
        for decode in decoders.values():
            decode(replace(first, max_output_tokens=tokens))
    executor = ThreadPoolExecutor(concurrency)
    try:
        answers = {executor.submit(answer, sample): sample for sample in missing}
        for completions in as_completed(answers):
            sample = answers[completions]
            store.add(sample.key(names), completions.result())
            on_sample(sample.dataset)
    finally:
        executor.shutdown(cancel_futures=True)
    return [
        _answered(dataset, temperature, group, [*decoders], names, store)
        for (dataset, temperature), group in by_dataset.items()
    ]


def _answered(
    dataset: str,
    temperature: float,
    samples: Sequence[SampleRequest],
    decoders: Sequence[str],
    names: Sequence[str],
    store: CompletionStore,
) -> Answered:
    records = [record for sample in samples if (record := store.get(sample.key(names)))]
    completions = {name: [record[name] for record in records] for name in decoders}
    ids = tuple(sample.request.request_id for sample in samples)
    return Answered(dataset, temperature, ids, completions)
