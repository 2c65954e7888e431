"""`blockdraft bench peers`: other programs and this one, on the same prompts in the same run."""

import argparse
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blockdraft_bench.common.datasets import read_datasets
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flag_checks import check_at_least
from blockdraft_bench.common.flags import (
    DRAFTER_HELP,
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    output_folder,
)
from blockdraft_bench.peers.available import (
    LLAMA_CPP,
    PEERS,
    TRANSFORMERS,
    choose_peers,
    peer_versions,
)
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings

if TYPE_CHECKING:
    from blockdraft_bench.engine.decoding import InProcessDecoder
    from blockdraft_bench.peers.answers import PeerDecoder

ANSWERS_NAME = "samples.jsonl"
FLOAT32: Final = "float32"
# What a service does unless told otherwise.
DRAFT_POLICY: Final = "adaptive"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench peers`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=["gsm8k", "humaneval"], samples=8, max_tokens=128, max_prompt_tokens=512
    )
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--drafter", default=drafter.drafter, help=DRAFTER_HELP)
    option(
        "--peer", nargs="+", choices=PEERS, help="peers that have to take part; else all who can"
    )
    option("--assistant", help="smaller model for assisted generation, named like a target")
    option("--dtype", choices=(FLOAT32, "bfloat16"), default=FLOAT32, help="of transformers")
    option("--threads", type=int, help="of the peers; else one for each core this process may use")
    option("--seed", type=int, default=0, help="of rows and intervals")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write the report, print it; return the exit code."""
    _check(args)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    target = resolve_target(args.target)
    chosen, skipped = choose_peers(args.peer, target)
    if args.assistant is not None and TRANSFORMERS not in chosen:
        reason = skipped.get(TRANSFORMERS, "--peer leaves it out")
        raise BenchUsageError(f"--assistant is for transformers: {reason}")
    assistant = None if args.assistant is None else resolve_target(args.assistant)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.line_store import digest
    from blockdraft_bench.common.preparation import chosen_prompts, keep_executables, shown_progress
    from blockdraft_bench.peers.answers import Limits
    from blockdraft_bench.peers.blockdraft import BlockdraftPeer
    from blockdraft_bench.peers.measure import measure_peers
    from blockdraft_bench.peers.report import results_json, write_report
    from blockdraft_bench.peers.speeds import compare
    from blockdraft_bench.peers.store import PeerStore
    from blockdraft_models.tokenizer.tokenizer import load_tokenizer

    keep_executables()
    tokenizer = load_tokenizer(target)
    prompt_sets = chosen_prompts(args, datasets, tokenizer)
    limits = Limits(args.max_tokens, frozenset(tokenizer.eos_token_ids))
    context_tokens = args.max_prompt_tokens + args.max_tokens
    environment = describe_environment()
    threads = args.threads or environment["hardware"]["cores"]
    with shown_progress() as progress:
        loading = progress.add_task("loading", total=None)
        decoder = _load_ours(args, context_tokens)
        peers = _load_peers(chosen, target, assistant, args.dtype, threads, context_tokens)
        settings = _settings(args, decoder, assistant, threads)
        # Times of another machine or version are other times.
        conditions = environment["hardware"], environment["versions"]
        identity = digest([settings, conditions, sorted(limits.stop_token_ids)])
        output = output_folder(args.output, "peers", identity)
        store = PeerStore(identity, output / ANSWERS_NAME)
        decoder.warm_up(
            lambda done, total: progress.update(
                loading, description="compiling", completed=done, total=total
            )
        )
        plain, drafted = (
            BlockdraftPeer(decoder, drafted=mode, dtype=FLOAT32) for mode in (False, True)
        )
        decoders: list[PeerDecoder] = [plain, drafted, *peers]
        prompts = sum(len(prompt_set.prompts) for prompt_set in prompt_sets)
        decoding = progress.add_task("decoding", total=prompts * len(decoders))
        answers = measure_peers(
            decoders, prompt_sets, limits, store, lambda: progress.advance(decoding)
        )
    decoder.close()
    results = compare(answers, plain=plain.variant, drafted=drafted.variant, seed=args.seed)
    report = {
        "benchmark": "peers",
        **environment,
        **settings,
        "results": results_json(results, skipped, prompt_sets),
    }
    text, table = write_report(report, results, output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else table)
    return 0


def _load_ours(args: argparse.Namespace, context_tokens: int) -> "InProcessDecoder":
    """Load target and drafter, in float32: then transformers can compute with the same numbers."""
    from blockdraft_bench.engine.load_methods import load_methods
    from blockdraft_bench.engine.load_pair import load_drafting
    from blockdraft_bench.peers.blockdraft import DRAFTED

    drafting = load_drafting(
        args.target,
        args.drafter,
        block_size=DrafterSettings().block_size,
        concurrency=1,
        context_tokens=context_tokens,
        dtype=FLOAT32,
    )
    methods = load_methods(
        args.target,
        {DRAFTED: drafting},
        context_tokens=context_tokens,
        dtype=FLOAT32,
        draft_policy=DRAFT_POLICY,
    )
    return methods.decoders[DRAFTED]


def _load_peers(
    chosen: Collection[str],
    target: Path,
    assistant: Path | None,
    dtype: str,
    threads: int,
    context_tokens: int,
) -> "list[PeerDecoder]":
    """Load those that take part; what is not installed is not imported."""
    peers: list[PeerDecoder] = []
    if TRANSFORMERS in chosen:
        from blockdraft_bench.peers.transformers import load_transformers_peers

        peers += load_transformers_peers(target, assistant, dtype, threads)
    if LLAMA_CPP in chosen:
        from blockdraft_bench.peers.llama_cpp import LlamaCppPeer

        peers.append(LlamaCppPeer(target, context_tokens, threads))
    return peers


def _settings(
    args: argparse.Namespace, decoder: "InProcessDecoder", assistant: Path | None, threads: int
) -> dict[str, Any]:
    """Return all that decides answers and times, beside prompts and decoders."""
    from blockdraft_models.weights.loading import load_checkpoint_config

    drafter = decoder.drafter
    helper = None if assistant is None else load_checkpoint_config(assistant)
    return {
        "target": {
            "name": decoder.target.config.name,
            "fingerprint": decoder.target.fingerprint,
        },
        "drafter": {
            "method": drafter.method,
            "fingerprint": drafter.fingerprint,
            "trained": drafter.trained,
        },
        "block_size": drafter.block_size,
        "draft_policy": DRAFT_POLICY,
        "assistant": None
        if helper is None
        else {"name": helper.config.name, "fingerprint": helper.fingerprint},
        "max_tokens": args.max_tokens,
        "max_prompt_tokens": args.max_prompt_tokens,
        "threads": threads,
        "seed": args.seed,
        "peer_versions": peer_versions(),
    }


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    # An answer of one token takes no time after its first.
    least = {"samples": 1, "max_tokens": 2, "max_prompt_tokens": 1}
    check_at_least(args, least if args.threads is None else {**least, "threads": 1})
