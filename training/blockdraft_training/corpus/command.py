"""`blockdraft train corpus`: let the target answer prompts."""

import argparse
import json

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.corpus.settings import CorpusSettings

CONFIGURATION = Configuration("train corpus", CorpusSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    CONFIGURATION.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Make the corpus and return the exit code."""
    settings = CONFIGURATION.read(args)
    # Imported here: `--help` must not wait for jax.

    from blockdraft_models.executables import keep_executables
    from blockdraft_training.corpus.maker import CorpusMaker

    keep_executables(settings.compilation_cache)
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
