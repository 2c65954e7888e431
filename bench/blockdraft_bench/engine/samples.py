"""Samples, the key under which their completions are kept, and the one loop that asks for them."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.errors import BenchError
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_bench.provenance import digest
from blockdraft_bench.store import Key, ResultStore
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.engine.guards import RecompilationGuard
from blockdraft_verifier.scheduling.sequence import GenerationRequest

T = TypeVar("T")

# Of the untimed completion that each decoder gives first: allocations and compilation are not its
# speed.
WARM_UP_TOKENS = 16

# The completions to a sample by decoder, in the order in which they were decoded. Those whose times
# are compared are one record, so that they stay together.
Completions = dict[str, CompletionRecord]
CompletionStore = ResultStore[Completions]
DecodeOne = Callable[[GenerationRequest], CompletionRecord]
# Takes the completions to the sample of an index.
Keep = Callable[[int, Completions], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """The length, the stop tokens and the seed of completions.

    A sample's own seed depends on this one, its dataset and its id: more samples change no
    completion.
    """

    max_tokens: int
    stop_token_ids: frozenset[int]
    seed: int = 0

    def request(
        self, dataset: str, prompt: SamplePrompt, temperature: float = 0.0
    ) -> GenerationRequest:
        """Return the request for one sample's completion; temperature 0 is greedy."""
        name = f"{self.seed}/{dataset}/{prompt.sample_id}"
        own_seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
        return GenerationRequest(
            prompt.sample_id,
            prompt.token_ids,
            sampling=Sampling(temperature=temperature, seed=own_seed),
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

    def key(self, decoders: tuple[str, ...]) -> Key:
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
    requests: tuple[GenerationRequest, ...]
    completions: Mapping[str, Sequence[CompletionRecord]]


# Decodes samples by a group of decoders, and hands over the completions of each sample at once.
Decode = Callable[[tuple[str, ...], Sequence[SampleRequest], Keep], None]


class SampleDecoder:
    """Decodes samples by each of a group of decoders, one completion at a time; a `Decode`."""

    def __init__(self, decoders: Mapping[str, DecodeOne]) -> None:
        """Use decoders that have compiled what they need; each computes the whole prompt."""
        self._decoders = decoders
        self._cold = set(decoders)
        self._compiled = 0
        self._guard = RecompilationGuard(self._count)

    def __call__(
        self, group: tuple[str, ...], samples: Sequence[SampleRequest], keep: Keep
    ) -> None:
        """Answer each sample by every decoder of a group, one right after another.

        The sample's number decides which is first. `BenchError` if something was compiled
        meanwhile: the times would not be those of decoding.
        """
        for index, sample in enumerate(samples):
            names = in_turn(group, sample.number)
            request = sample.request
            tokens = min(WARM_UP_TOKENS, request.max_output_tokens)
            for name in [name for name in names if name in self._cold]:
                self._decoders[name](replace(request, max_output_tokens=tokens))
                self._cold.remove(name)
            self._guard.arm()
            try:
                completions = {name: self._decoders[name](request) for name in names}
            finally:
                self._guard.disarm()
            if self._compiled:
                raise BenchError(f"{self._compiled} steps were compiled while being timed")
            keep(index, completions)

    def _count(self) -> None:
        self._compiled += 1


def in_turn(things: Sequence[T], turn: int) -> tuple[T, ...]:
    """Return things in their order, beginning with number `turn`, modulo their number."""
    first = turn % len(things)
    return (*things[first:], *things[:first])


def answer_all(
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    limits: Limits,
    groups: Sequence[tuple[str, ...]],
    decode: Decode,
    store: CompletionStore,
    *,
    many_at_a_time: bool = False,
    on_completions: Callable[[str], None] = lambda dataset: None,
) -> list[Answered]:
    """Have every prompt answered at each temperature, unless the store has its completions.

    All groups answer a sample before any answers the next, so that a disturbance of the machine
    meets all of them; which is first changes from sample to sample. `many_at_a_time` gives `decode`
    all samples of a dataset at once. `on_completions` is called with the dataset of each sample and
    group, also of those that the store has.
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
    every = [sample for samples in by_dataset.values() for sample in samples]
    store.announce([sample.key(group) for sample in every for group in groups])
    answered = []
    for (dataset, temperature), samples in by_dataset.items():
        completions: dict[str, list[CompletionRecord]] = {
            name: [] for group in groups for name in group
        }
        for batch in [samples] if many_at_a_time else [[sample] for sample in samples]:
            for group in in_turn(groups, batch[0].number):
                for record in _answer(batch, group, decode, store, on_completions):
                    for name, completion in record.items():
                        completions[name].append(completion)
        requests = tuple(sample.request for sample in samples)
        answered.append(Answered(dataset, temperature, requests, completions))
    return answered


def _answer(
    samples: Sequence[SampleRequest],
    group: tuple[str, ...],
    decode: Decode,
    store: CompletionStore,
    on_completions: Callable[[str], None],
) -> list[Completions]:
    """Return the completions of one group in the order of the samples."""
    keys = [sample.key(group) for sample in samples]
    missing = [index for index, key in enumerate(keys) if store.get(key) is None]
    for _ in range(len(keys) - len(missing)):
        on_completions(samples[0].dataset)

    def keep(index: int, completions: Completions) -> None:
        store.add(keys[missing[index]], completions)
        on_completions(samples[0].dataset)

    if missing:
        decode(group, [samples[index] for index in missing], keep)
    return [record for key in keys if (record := store.get(key)) is not None]
