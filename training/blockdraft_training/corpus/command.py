"""`blockdraft train corpus`: let the target answer prompts."""

import argparse
import json
import sys
from pathlib import Path

from blockdraft_models.weights.default_target import default_cache_dir
from blockdraft_training.corpus.prompts import PromptFile
from blockdraft_training.corpus.settings import DTYPES, CorpusSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    default = _default()
    option = parser.add_argument
    option("--output", type=Path, required=True, help=".jsonl file to write or to go on with")
    option("--target", default=default.target, help="directory, .gguf file, hub id or name")
    option(
        "--prompts",
        type=PromptFile.parse,
        nargs="+",
        action="extend",
        metavar="[NAME=]FILE",
        help="prompts to answer, .jsonl or .jsonl.gz; NAME is their source",
    )
    option(
        "--self-chat",
        type=int,
        default=default.self_chat,
        metavar="N",
        help="prompts the target makes up",
    )
    option(
        "--self-prefix",
        action="append",
        metavar="TEXT",
        help="how the user begins in those; repeatable, taken in turn",
    )
    option(
        "--exclude",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        help="test sets: prompts that occur in them are dropped",
    )
    option(
        "--licence",
        action="append",
        metavar="[NAME=]TEXT",
        help="licence of the prompts (of source NAME), for the manifest; repeatable",
    )
    option(
        "--greedy-share", type=float, default=default.greedy_share, help="rows answered greedily"
    )
    option("--temperature", type=float, default=default.temperature, help="of the other rows")
    option("--seed", type=int, default=default.seed, help="all randomness follows from it")
    option("--max-tokens", type=int, default=default.max_tokens, help="longest answer")
    option(
        "--max-prompt-tokens",
        type=int,
        default=default.max_prompt_tokens,
        help="longest prompt; longer ones are dropped",
    )
    option("--limit", type=int, default=default.limit, help="most rows")
    option(
        "--batch-size", type=int, default=default.batch_size, help="answers in the making at once"
    )
    option("--dtype", choices=DTYPES, default=default.dtype, help="of weights and cache")
    option(
        "--compilation-cache",
        type=Path,
        default=default_cache_dir() / "xla",
        help="directory that keeps compiled executables",
    )
    option("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Make the corpus and return the exit code."""
    try:
        settings = settings_from(args)
    except ValueError as error:
        print(f"blockdraft train corpus: {error}", file=sys.stderr)
        return 2
    import jax

    from blockdraft_training.corpus.maker import CorpusMaker

    jax.config.update("jax_compilation_cache_dir", str(args.compilation_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    summary = CorpusMaker(settings).make()
    if args.json:
        print(json.dumps(summary.to_json(), ensure_ascii=False))
        return 0
    dropped = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
    print(
        f"{summary.path}: {summary.rows} rows ({summary.new_rows} new),"
        f" {summary.response_tokens} tokens, {summary.tokens_per_second:.0f} tokens/s;"
        f" dropped: {dropped}"
    )
    return 0


def settings_from(args: argparse.Namespace) -> CorpusSettings:
    """Return what the flags ask for.

    Raises:
        ValueError: If that cannot be done.
    """
    default, licences = _default(), {}
    for text in args.licence or ():
        source, separator, licence = text.partition("=")
        licences[source if separator else ""] = licence if separator else text
    return CorpusSettings(
        output=args.output,
        target=args.target,
        prompts=tuple(args.prompts or ()),
        self_chat=args.self_chat,
        openings=tuple(args.self_prefix or default.openings),
        exclude=tuple(args.exclude or ()),
        licences=licences,
        greedy_share=args.greedy_share,
        temperature=args.temperature,
        seed=args.seed,
        max_tokens=args.max_tokens,
        max_prompt_tokens=args.max_prompt_tokens,
        limit=args.limit,
        batch_size=args.batch_size,
        dtype=args.dtype,
    )


def _default() -> CorpusSettings:
    # Some prompts there must be, but none are the default.
    return CorpusSettings(Path("corpus.jsonl"), prompts=(PromptFile("", Path()),))
