"""Measuring peers: every prompt through every decoder, one after another."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from blockdraft_bench.common.answers import DRAFTED, PLAIN
from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.prompts import prepare
from blockdraft_bench.common.provenance import Drafter, Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.loading import Capacity, load_pair
from blockdraft_bench.engine.sample_decoder import DecodeOne, SampleDecoder
from blockdraft_bench.engine.samples import Limits, answer_all, open_store
from blockdraft_bench.peers.answers import BLOCKDRAFT, Variant
from blockdraft_bench.peers.available import LLAMA_CPP, TRANSFORMERS, peer_versions
from blockdraft_bench.peers.command import PeersSettings
from blockdraft_bench.peers.figure import draw
from blockdraft_bench.peers.report import PeersReport, markdown
from blockdraft_bench.peers.speeds import compare
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings

# Of our weights: then transformers can compute with the same numbers.
FLOAT32: Final = "float32"
# What a service does unless told otherwise.
DRAFT_POLICY: Final = "adaptive"


def load_and_measure(
    settings: PeersSettings,
    datasets: Sequence[Dataset],
    run: Run,
    chosen: Collection[str],
    skipped: Mapping[str, str],
) -> Outcome:
    """Load, measure, report.

    Args:
        settings: What to measure.
        datasets: What `--dataset` names.
        run: Where results are kept.
        chosen: Peers that take part.
        skipped: Why each of the others does not.
    """
    prompts = settings.prompts
    assistant = None if settings.assistant is None else resolve_target(settings.assistant)
    prepared = prepare(prompts, datasets)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    capacity = Capacity(1, prompts.context_tokens, FLOAT32)
    made_with = origin(run.commit)
    threads = settings.threads or made_with["hardware"].cores
    loading = run.phase("loading and compiling")
    block_size = DrafterSettings().block_size
    decoder = load_pair(
        prompts.target, settings.drafter, capacity, DRAFT_POLICY, block_size=block_size
    )
    plain, drafted = (Variant(BLOCKDRAFT, name, FLOAT32) for name in (PLAIN, DRAFTED))
    decoders: dict[Variant, DecodeOne] = {
        plain: functools.partial(decoder.decode_alone, max_draft_tokens=0),
        drafted: decoder.decode_alone,
    }
    # What is not installed is not imported.
    if TRANSFORMERS in chosen:
        from blockdraft_bench.peers.transformers import load_transformers_peers

        peers = load_transformers_peers(prepared.target, assistant, settings.dtype, threads)
        decoders |= {peer.variant: peer.decode for peer in peers}
    if LLAMA_CPP in chosen:
        from blockdraft_bench.peers.llama_cpp import LlamaCppPeer

        llama_cpp = LlamaCppPeer(prepared.target, capacity.context_tokens, threads)
        decoders[llama_cpp.variant] = llama_cpp.decode
    drafter = decoder.drafter
    about = PeersReport(
        **made_with,
        target=Target.of(decoder.target),
        drafter=Drafter(drafter.method, drafter.fingerprint, drafter.trained),
        block_size=drafter.block_size,
        draft_policy=DRAFT_POLICY,
        assistant=None if assistant is None else Target.of(load_checkpoint_config(assistant)),
        max_tokens=prompts.max_tokens,
        max_prompt_tokens=prompts.max_prompt_tokens,
        threads=threads,
        seed=prompts.seed,
        peer_versions=peer_versions(),
        results=(),
        skipped={},
    )
    # The command does not decide an answer or its time, nor does a commit of anything but code.
    run.identify(replace(about, command="", commit=None), sorted(limits.stop_token_ids))
    store = open_store(run)
    decoder.warm_up(loading.reach)
    decoding = run.phase("decoding", total=prepared.count * len(decoders))
    named = {str(variant): decode for variant, decode in decoders.items()}
    answered = answer_all(
        prepared.prompt_sets,
        [0.0],
        limits,
        [(name,) for name in named],
        SampleDecoder(named),
        store,
        on_answers=decoding.advance,
    )
    decoder.close()
    answers = {
        variant: [answer for each in answered for answer in each.answers[str(variant)]]
        for variant in decoders
    }
    names = [(group.dataset, p.sample_id) for group in prepared.prompt_sets for p in group.prompts]
    rows = compare(answers, names, plain=plain, drafted=drafted, seed=prompts.seed)
    report = replace(about, results=rows, skipped=dict(skipped))
    return Outcome(report, markdown(report), {"": draw(report)})
