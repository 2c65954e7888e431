"""Measuring peers: every prompt through every decoder, one after another."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.preparation import prepare
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.common.provenance import Drafter, Target, origin
from blockdraft_bench.common.record import digest
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine.loading import Capacity, load_drafting, load_methods
from blockdraft_bench.peers.answers import Limits, PeerDecoder, TimedAnswer, Variant
from blockdraft_bench.peers.available import LLAMA_CPP, TRANSFORMERS, peer_versions
from blockdraft_bench.peers.blockdraft import DRAFTED, BlockdraftPeer
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
# Of the untimed answer each decoder gives first: allocations and compilation are not its speed.
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PeerKey:
    """Which answer.

    Attributes:
        dataset: Name of the dataset.
        sample: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        variant: Who decoded it, and how.
    """

    dataset: str
    sample: str
    prompt: str
    variant: Variant


PeerStore = ResultStore[PeerKey, TimedAnswer]


def load_and_measure(
    args: argparse.Namespace,
    datasets: Sequence[Dataset],
    run: Run,
    chosen: Collection[str],
    skipped: Mapping[str, str],
) -> Outcome:
    """Load, measure, report.

    Args:
        args: The flags of `bench peers`, checked.
        datasets: What `--dataset` names.
        run: Where results are kept.
        chosen: Peers that take part.
        skipped: Why each of the others does not.
    """
    assistant = None if args.assistant is None else resolve_target(args.assistant)
    prepared = prepare(args, datasets)
    limits = Limits(args.max_tokens, prepared.stop_token_ids)
    capacity = Capacity(1, args.max_prompt_tokens + args.max_tokens, FLOAT32)
    made_with = origin()
    threads = args.threads or made_with["hardware"].cores
    loading = run.phase("loading and compiling")
    block_size = DrafterSettings().block_size
    drafting = load_drafting(args.target, args.drafter, capacity, block_size=block_size)
    methods = load_methods(args.target, {DRAFTED: drafting}, capacity, DRAFT_POLICY)
    decoder = methods.decoders[DRAFTED]
    peers: list[PeerDecoder] = []
    # What is not installed is not imported.
    if TRANSFORMERS in chosen:
        from blockdraft_bench.peers.transformers import load_transformers_peers

        peers += load_transformers_peers(prepared.target, assistant, args.dtype, threads)
    if LLAMA_CPP in chosen:
        from blockdraft_bench.peers.llama_cpp import LlamaCppPeer

        peers.append(LlamaCppPeer(prepared.target, capacity.context_tokens, threads))
    drafter = decoder.drafter
    about = PeersReport(
        **made_with,
        target=Target.of(methods.checkpoint),
        drafter=Drafter(drafter.method, drafter.fingerprint, drafter.trained),
        block_size=drafter.block_size,
        draft_policy=DRAFT_POLICY,
        assistant=_assistant(assistant),
        max_tokens=args.max_tokens,
        max_prompt_tokens=args.max_prompt_tokens,
        threads=threads,
        seed=args.seed,
        peer_versions=peer_versions(),
        results=(),
        skipped={},
    )
    # The command does not decide an answer or its time, nor does a commit that only adds to it.
    run.identify(replace(about, command="", commit=None), sorted(limits.stop_token_ids))
    store = run.store(PeerKey, TimedAnswer)
    decoder.warm_up(loading.reach)
    plain, drafted = (
        BlockdraftPeer(decoder, drafted=mode, dtype=FLOAT32) for mode in (False, True)
    )
    decoders = [plain, drafted, *peers]
    decoding = run.phase("decoding", total=prepared.count * len(decoders))
    answers = measure_peers(decoders, prepared.prompt_sets, limits, store, decoding.advance)
    decoder.close()
    names = [(group.dataset, p.sample_id) for group in prepared.prompt_sets for p in group.prompts]
    rows = compare(answers, names, plain=plain.variant, drafted=drafted.variant, seed=args.seed)
    report = replace(about, results=rows, skipped=dict(skipped))
    return Outcome(report, markdown(report), {"": draw(report)})


def _assistant(path: Path | None) -> Target | None:
    return None if path is None else Target.of(load_checkpoint_config(path))


def measure_peers(
    decoders: Sequence[PeerDecoder],
    prompt_sets: Sequence[PromptSet],
    limits: Limits,
    store: PeerStore,
    on_answer: Callable[[], None] = lambda: None,
) -> dict[Variant, list[TimedAnswer]]:
    """Decode every prompt with every decoder.

    All decoders answer a prompt before any answers the next, so that a disturbance of the machine
    meets all of them; who is first changes from prompt to prompt.

    Args:
        decoders: Loaded and ready.
        prompt_sets: Prompts by dataset.
        limits: Where answers end.
        store: Where answers are kept; what it holds is not decoded again.
        on_answer: Called for every answer, also for those the store holds.

    Returns:
        The answers of each, in the order of the prompts.
    """
    answers: dict[Variant, list[TimedAnswer]] = {decoder.variant: [] for decoder in decoders}
    warm: set[Variant] = set()
    prompts = [(group.dataset, prompt) for group in prompt_sets for prompt in group.prompts]
    for index, (dataset, prompt) in enumerate(prompts):
        first = index % len(decoders)
        for decoder in (*decoders[first:], *decoders[:first]):
            variant = decoder.variant
            key = PeerKey(dataset, prompt.sample_id, digest(prompt.token_ids), variant)
            answer = store.get(key)
            if answer is None:
                if variant not in warm:
                    short = replace(limits, max_tokens=min(WARM_UP_TOKENS, limits.max_tokens))
                    decoder.decode(prompt.token_ids, short)
                    warm.add(variant)
                answer = decoder.decode(prompt.token_ids, limits)
                store.add(key, answer)
            answers[variant].append(answer)
            on_answer()
    return answers
