"""Measuring acceptance: every prompt decoded with and without drafting, then summed up."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from blockdraft_bench.acceptance.command import AcceptanceSettings
from blockdraft_bench.acceptance.figure import draw
from blockdraft_bench.acceptance.report import AcceptanceReport, DatasetAcceptance, markdown
from blockdraft_bench.acceptance.statistics import summarize
from blockdraft_bench.common.answers import DRAFTED, PLAIN
from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.prompts import PromptSet, prepare
from blockdraft_bench.common.provenance import Drafter, Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.loading import Capacity, load_pair, whole_proposal
from blockdraft_bench.engine.samples import (
    AnswerStore,
    Keep,
    Limits,
    Sample,
    answer_all,
    open_store,
)
from blockdraft_models.precision import serving_dtype


def load_and_measure(
    settings: AcceptanceSettings, datasets: Sequence[Dataset], run: Run
) -> Outcome:
    """Load, measure, report; `datasets` are those that `--dataset` names."""
    prompts = settings.prompts
    prepared = prepare(prompts, datasets)
    loading = run.phase("loading and compiling")
    capacity = Capacity(settings.concurrency, prompts.context_tokens, settings.dtype)
    decoder = load_pair(
        prompts.target, settings.drafter, capacity, "fixed", block_size=settings.block_size
    )
    drafter = decoder.drafter
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    draft_length = whole_proposal(settings.draft_length, drafter.block_size)
    dtype = str(serving_dtype(settings.dtype))
    run.identify(*conditions(limits, draft_length, decoder, dtype, settings.top_p))
    store = open_store(run)
    decoder.warm_up(loading.reach)
    decoding = run.phase("decoding", total=prepared.count * len(settings.temperature) * 2)
    results = measure_acceptance(
        decoder,
        prepared.prompt_sets,
        settings.temperature,
        limits,
        draft_length,
        store,
        decoding.advance,
        top_p=settings.top_p,
    )
    decoder.close()
    report = AcceptanceReport(
        **origin(run.commit),
        target=Target.of(decoder.target),
        drafter=Drafter(drafter.method, drafter.fingerprint, drafter.trained),
        block_size=drafter.block_size,
        draft_length=draft_length,
        max_tokens=prompts.max_tokens,
        max_prompt_tokens=prompts.max_prompt_tokens,
        seed=prompts.seed,
        results=tuple(results),
        dtype=dtype,
        top_p=settings.top_p,
    )
    return Outcome(report, markdown(report), {"": draw(report)})


def conditions(
    limits: Limits, draft_length: int, decoder: InProcessDecoder, dtype: str, top_p: float
) -> tuple[object, ...]:
    """Return all that decides an answer beside prompt and temperature."""
    target, drafter = decoder.target.fingerprint, decoder.drafter.fingerprint
    return limits, draft_length, target, drafter, dtype, top_p


def measure_acceptance(
    decoder: InProcessDecoder,
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    limits: Limits,
    draft_length: int,
    store: AnswerStore,
    on_answer: Callable[[str], None] = lambda dataset: None,
    *,
    top_p: float = 1.0,
) -> list[DatasetAcceptance]:
    """Decode every prompt with and without drafting at each temperature, and sum up.

    Args:
        decoder: Target and drafter, warmed up.
        prompt_sets: As for `answer_all`, like all that is not said here.
        temperatures: Of the target; 0 is greedy.
        limits: How to answer; its seed is also that of the intervals.
        draft_length: Tokens of a whole proposal.
        store: Where answers are kept.
        on_answer: Told the dataset of every answer.
        top_p: Of the target; 1 keeps all tokens.
    """
    lengths = {DRAFTED: draft_length, PLAIN: 0}

    def decode(group: tuple[str, ...], samples: Sequence[Sample], keep: Keep) -> None:
        [way] = group
        requests = [
            replace(
                each.request,
                sampling=replace(each.request.sampling, top_p=top_p),
                max_draft_tokens=lengths[way],
            )
            for each in samples
        ]
        decoder.decode(requests, lambda index, answer: keep(index, {way: answer}))

    answered = answer_all(
        prompt_sets,
        temperatures,
        limits,
        [(DRAFTED,), (PLAIN,)],
        decode,
        store,
        many_at_a_time=True,
        on_answers=on_answer,
    )
    return [
        summarize(
            each.dataset,
            each.temperature,
            each.answers[DRAFTED],
            each.answers[PLAIN],
            draft_length=draft_length,
            seed=limits.seed,
        )
        for each in answered
    ]
