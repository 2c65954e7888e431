"""Measuring decoding: every sample by every method, one method right after another."""

import argparse
import itertools
from collections.abc import Callable, Sequence

from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.preparation import prepare
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.common.provenance import Target, origin
from blockdraft_bench.common.record import digest
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.decode.choice_margin import ChoiceMargin
from blockdraft_bench.decode.divergence import find_divergences
from blockdraft_bench.decode.figure import draw
from blockdraft_bench.decode.report import DecodeFlags, DecodeReport, MethodSpeed, markdown
from blockdraft_bench.decode.samples import DecodedSample, DecodedSet, SampleAnswers, SampleKey
from blockdraft_bench.decode.setup import DecodeSettings, DecodeSetup, set_up
from blockdraft_bench.decode.speed import average, summarize_method
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.sample_request import sample_request
from blockdraft_models.decoder.dtypes import compute_dtype

SampleStore = ResultStore[SampleKey, SampleAnswers]


def load_and_measure(args: argparse.Namespace, datasets: Sequence[Dataset], run: Run) -> Outcome:
    """Load, measure, report.

    Args:
        args: The flags of `bench decode`, checked.
        datasets: What `--dataset` names.
        run: Where results are kept.
    """
    prepared = prepare(args, datasets)
    loading = run.phase("loading and compiling")
    setup = set_up(args, prepared.stop_token_ids, loading.reach)
    settings, target = setup.settings, Target.of(setup.methods.checkpoint)
    drafters, dtype, made_with = setup.drafters(), str(compute_dtype(args.dtype)), origin()
    # Times of another machine or version are other times.
    conditions = made_with["versions"], made_with["hardware"]
    run.identify(settings, target, drafters, dtype, conditions)
    decoder = SampleDecoder(setup.methods.decoders, settings.draft_lengths)
    decoding = run.phase("decoding", total=prepared.count * len(args.temperature))
    decoded = measure_decode(
        decoder,
        prepared.prompt_sets,
        args.temperature,
        settings,
        run.store(SampleKey, SampleAnswers),
        on_start=decoding.rename,
        on_sample=decoding.advance,
    )
    results = _summarize(decoded, setup)
    for engine in setup.methods.engines:
        engine.close()
    report = DecodeReport(
        **made_with,
        target=target,
        drafters=drafters,
        settings=DecodeFlags(
            datasets=tuple(dataset.name for dataset in datasets),
            samples=args.samples,
            max_tokens=args.max_tokens,
            max_prompt_tokens=args.max_prompt_tokens,
            temperature=tuple(args.temperature),
            draft_policy=args.draft_policy,
            seed=args.seed,
            dtype=dtype,
            concurrency=1,
        ),
        recompilations=decoder.recompilations,
        results=tuple(results),
        average=tuple(average(results)),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


def measure_decode(
    decoder: SampleDecoder,
    prompt_sets: Sequence[PromptSet],
    temperatures: Sequence[float],
    settings: DecodeSettings,
    store: SampleStore,
    *,
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
            found = store.get(key)
            if found is None:
                found = SampleAnswers(decoder.decode(request, turn))
                store.add(key, found)
            samples.append(DecodedSample(request, found.methods))
            on_sample()
        decoded.append(DecodedSet(prompt_set.dataset, temperature, tuple(samples)))
    return decoded


def _summarize(decoded: Sequence[DecodedSet], setup: DecodeSetup) -> list[MethodSpeed]:
    """Sum up each method on each dataset, and look into the answers that differ."""
    margin = ChoiceMargin(setup.methods.target)
    return [
        summarize_method(
            chosen,
            method,
            draft_length=length,
            seed=setup.settings.seed,
            divergences=find_divergences(chosen, method, margin),
        )
        for chosen in decoded
        for method, length in setup.settings.draft_lengths.items()
    ]
