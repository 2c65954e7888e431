"""Measuring decoding: every sample by every method, one method right after another."""

import functools
from collections.abc import Mapping, Sequence

from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.prompts import prepare
from blockdraft_bench.common.provenance import Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.decode.command import DecodeSettings
from blockdraft_bench.decode.divergence import ChoiceMargin, find_divergences
from blockdraft_bench.decode.figure import draw
from blockdraft_bench.decode.report import DecodeFlags, DecodeReport, MethodDrafter, markdown
from blockdraft_bench.decode.setup import LOOKUP, set_up
from blockdraft_bench.decode.speed import average, summarize_method
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.loading import DecodingMethods
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.samples import Limits, answer_all, open_store
from blockdraft_models.precision import serving_dtype


def load_and_measure(settings: DecodeSettings, datasets: Sequence[Dataset], run: Run) -> Outcome:
    """Load, measure, report; `datasets` are those that `--dataset` names."""
    prompts = settings.prompts
    prepared = prepare(prompts, datasets)
    loading = run.phase("loading and compiling")
    methods, lengths = set_up(settings, loading.reach)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    target, drafters = Target.of(methods.checkpoint), _drafters(methods, lengths)
    dtype, made_with = str(serving_dtype(settings.dtype)), origin(run.commit)
    # Times of another accelerator are other times.
    conditions = settings.draft_policy, made_with["hardware"]
    run.identify(limits, lengths, target, drafters, dtype, conditions)
    decoder = sample_decoder(methods.decoders, lengths)
    decoding = run.phase("decoding", total=prepared.count * len(settings.temperature))
    # All methods are one group: one that was interrupted between two is decoded again by all.
    answered = answer_all(
        prepared.prompt_sets,
        settings.temperature,
        limits,
        [tuple(lengths)],
        decoder,
        open_store(run),
        on_answers=decoding.advance,
    )
    margin = ChoiceMargin(methods.target)
    results = [
        summarize_method(
            each,
            method,
            draft_length=length,
            seed=prompts.seed,
            divergences=find_divergences(each, method, margin),
        )
        for each in answered
        for method, length in lengths.items()
    ]
    for engine in methods.engines:
        engine.close()
    report = DecodeReport(
        **made_with,
        target=target,
        drafters=drafters,
        settings=DecodeFlags(
            datasets=tuple(dataset.name for dataset in datasets),
            samples=prompts.samples,
            max_tokens=prompts.max_tokens,
            max_prompt_tokens=prompts.max_prompt_tokens,
            temperature=settings.temperature,
            draft_policy=settings.draft_policy,
            seed=prompts.seed,
            dtype=dtype,
            concurrency=1,
        ),
        recompilations=decoder.recompilations,
        results=tuple(results),
        average=tuple(average(answered, lengths, prompts.seed)),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


def sample_decoder(
    decoders: Mapping[str, InProcessDecoder], draft_lengths: Mapping[str, int]
) -> SampleDecoder:
    """Return what decodes by each method; a draft length of 0 is plain decoding."""
    return SampleDecoder(
        {
            method: functools.partial(decoders[method].decode_alone, max_draft_tokens=length)
            for method, length in draft_lengths.items()
        }
    )


def _drafters(methods: DecodingMethods, lengths: Mapping[str, int]) -> dict[str, MethodDrafter]:
    """Return what a report says of the drafters."""
    return {
        method: MethodDrafter(
            drafter.fingerprint, drafter.trained, drafter.block_size, draft_length
        )
        for method, draft_length in lengths.items()
        if draft_length and method != LOOKUP
        for drafter in [methods.decoders[method].drafter]
    }
