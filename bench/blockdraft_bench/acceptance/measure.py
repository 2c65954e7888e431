"""Measuring acceptance: every prompt decoded with and without drafting, then summed up."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from blockdraft_bench.acceptance.figure import draw
from blockdraft_bench.acceptance.report import AcceptanceReport, DatasetAcceptance, markdown
from blockdraft_bench.acceptance.statistics import summarize
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.preparation import prepare
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.common.provenance import Drafter, Target, origin
from blockdraft_bench.common.record import digest
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.loading import (
    Capacity,
    load_drafting,
    load_methods,
    whole_proposal,
)
from blockdraft_bench.engine.sample_request import sample_request
from blockdraft_models.decoder.dtypes import compute_dtype

DRAFTED = "drafted"


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

    def conditions(self, decoder: InProcessDecoder, dtype: str) -> tuple[object, ...]:
        """Return all that decides an answer beside prompt and temperature."""
        return self, decoder.target.fingerprint, decoder.drafter.fingerprint, dtype


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """Which answer.

    Attributes:
        dataset: Name of the dataset.
        sample: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        temperature: Of the target.
        drafted: Whether with drafting.
    """

    dataset: str
    sample: str
    prompt: str
    temperature: float
    drafted: bool


AnswerStore = ResultStore[AnswerKey, Answer]


def load_and_measure(args: argparse.Namespace, datasets: Sequence[Dataset], run: Run) -> Outcome:
    """Load, measure, report.

    Args:
        args: The flags of `bench acceptance`, checked.
        datasets: What `--dataset` names.
        run: Where results are kept.
    """
    prepared = prepare(args, datasets)
    loading = run.phase("loading and compiling")
    capacity = Capacity(args.concurrency, args.max_prompt_tokens + args.max_tokens, args.dtype)
    drafting = load_drafting(args.target, args.drafter, capacity, block_size=args.block_size)
    methods = load_methods(args.target, {DRAFTED: drafting}, capacity, "fixed")
    decoder = methods.decoders[DRAFTED]
    drafter = decoder.drafter
    settings = AcceptanceSettings(
        max_tokens=args.max_tokens,
        draft_length=whole_proposal(args.draft_length, drafter.block_size),
        stop_token_ids=prepared.stop_token_ids,
        seed=args.seed,
    )
    run.identify(settings.conditions(decoder, str(compute_dtype(args.dtype))))
    store = run.store(AnswerKey, Answer)
    decoder.warm_up(loading.reach)
    decoding = run.phase("decoding", total=prepared.count * len(args.temperature) * 2)
    results = measure_acceptance(
        decoder, prepared.prompt_sets, args.temperature, settings, store, decoding.advance
    )
    decoder.close()
    report = AcceptanceReport(
        **origin(),
        target=Target.of(methods.checkpoint),
        drafter=Drafter(drafter.method, drafter.fingerprint, drafter.trained),
        block_size=drafter.block_size,
        draft_length=settings.draft_length,
        max_tokens=args.max_tokens,
        max_prompt_tokens=args.max_prompt_tokens,
        seed=args.seed,
        results=tuple(results),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


def measure_acceptance(
    decoder: InProcessDecoder,
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    settings: AcceptanceSettings,
    store: AnswerStore,
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
