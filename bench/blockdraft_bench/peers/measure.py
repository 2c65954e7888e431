"""Measuring peers: every prompt through every decoder, one right after another, round by round."""

import functools
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from blockdraft_bench.common.answers import DRAFTED, PLAIN
from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.prompts import prepare
from blockdraft_bench.common.provenance import Drafter, Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.loading import Capacity, load_drafting, load_methods
from blockdraft_bench.engine.sample_decoder import DecodeOne, SampleDecoder
from blockdraft_bench.engine.samples import AnswerKey, Limits, SampleAnswers, answer_all
from blockdraft_bench.peers.answers import BLOCKDRAFT, Variant
from blockdraft_bench.peers.command import PeersSettings
from blockdraft_bench.peers.decoders import Peers
from blockdraft_bench.peers.figure import draw
from blockdraft_bench.peers.report import PeersReport, markdown
from blockdraft_bench.peers.speeds import Round, compare
from blockdraft_bench.peers.tools import LLAMA_CPP, TRANSFORMERS
from blockdraft_models.precision import serving_dtype
from blockdraft_runtime.settings.drafter import DrafterSettings

# What a service does unless told otherwise.
DRAFT_POLICY: Final = "adaptive"


def load_and_measure(settings: PeersSettings, datasets: Sequence[Dataset], run: Run) -> Outcome:
    """Load, measure, report; `datasets` are those that `--dataset` names."""
    made_with = origin(run.commit)
    if made_with["hardware"].accelerator is not None:
        raise BenchUsageError("the peers compute on the processor; say JAX_PLATFORMS=cpu")
    prompts = settings.prompts
    prepared = prepare(prompts, datasets)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    capacity = Capacity(1, prompts.context_tokens, settings.dtype)
    dtype, threads = str(serving_dtype(settings.dtype)), made_with["hardware"].cores
    with ExitStack() as stack:
        run.phase("fetching and starting the peers")
        peers = Peers(stack)
        if LLAMA_CPP in settings.peer:
            peers.start_llama_cpp(prepared.target, threads, capacity.context_tokens)
        if TRANSFORMERS in settings.peer:
            peers.start_transformers(prepared.target, dtype, threads)
        loading = run.phase("loading and compiling")
        ours = stack.enter_context(closing(_load(settings, capacity)))
        plain, drafted = (Variant(BLOCKDRAFT, name, dtype) for name in (PLAIN, DRAFTED))
        decoders: dict[Variant, DecodeOne] = {
            plain: functools.partial(ours.decode_alone, max_draft_tokens=0),
            drafted: ours.decode_alone,
            **peers.decoders,
        }
        drafter = ours.drafter
        about = PeersReport(
            **made_with,
            target=Target.of(ours.target),
            drafter=Drafter(drafter.method, drafter.fingerprint, drafter.trained),
            block_size=drafter.block_size,
            draft_policy=DRAFT_POLICY,
            prompts=prepared.count,
            rounds=settings.rounds,
            max_tokens=prompts.max_tokens,
            max_prompt_tokens=prompts.max_prompt_tokens,
            threads=threads,
            seed=prompts.seed,
            peer_versions=peers.versions,
            results=(),
        )
        # The command does not decide an answer or its time, nor does a commit of anything but code.
        conditions = replace(about, command="", commit=None, rounds=0, prompts=0)
        run.identify(conditions, sorted(limits.stop_token_ids), [str(each) for each in decoders])
        ours.warm_up(loading.reach)
        decoding = run.phase("decoding", total=prepared.count * settings.rounds)
        names = {str(variant): decode for variant, decode in decoders.items()}
        decode = SampleDecoder(names)
        rounds: list[Round] = []
        for number in range(1, settings.rounds + 1):
            answered = answer_all(
                prepared.prompt_sets,
                [0.0],
                limits,
                # One group: what is compared was decoded one right after another.
                [tuple(names)],
                decode,
                run.store(AnswerKey, SampleAnswers, f"round-{number}.jsonl"),
                on_answers=decoding.advance,
            )
            rounds.append(
                {
                    variant: [answer for each in answered for answer in each.answers[str(variant)]]
                    for variant in decoders
                }
            )
    report = replace(about, results=compare(rounds, plain=plain, drafted=drafted))
    return Outcome(report, markdown(report), {"": draw(report)})


def _load(settings: PeersSettings, capacity: Capacity) -> InProcessDecoder:
    """Load what a service decodes with: the target, the drafter, and lookup beside it."""
    target = settings.prompts.target
    block_size = DrafterSettings().block_size
    drafter = load_drafting(target, settings.drafter, capacity, block_size=block_size)
    methods = load_methods(target, {DRAFTED: drafter}, capacity, DRAFT_POLICY, by_lookup=[DRAFTED])
    return methods.decoders[DRAFTED]
