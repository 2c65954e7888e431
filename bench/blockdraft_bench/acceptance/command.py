"""`blockdraft bench acceptance`: what a drafter gains, by dataset and temperature."""

import argparse
import sys

from blockdraft_bench.common.datasets import TEST_SETS, read_datasets
from blockdraft_bench.common.flag_checks import check_at_least, check_temperatures
from blockdraft_bench.common.flags import (
    DRAFTER_HELP,
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    output_folder,
)
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings

ANSWERS_NAME = "samples.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench acceptance`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=TEST_SETS, samples=32, max_tokens=256, max_prompt_tokens=1024
    )
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--drafter", default=drafter.drafter, help=DRAFTER_HELP)
    option("--block-size", type=int, default=drafter.block_size, help="block of a random drafter")
    option("--draft-length", type=int, help="tokens of a proposal; else all that a block holds")
    option("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="0 is greedy")
    option("--seed", type=int, default=0, help="of rows, sampling and intervals")
    option("--concurrency", type=int, default=8, help="answers decoded at a time")
    option("--dtype", choices=DTYPES, default=drafter.dtype, help="of weights, cache and contexts")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write the report, print it; return the exit code."""
    _check(args)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.acceptance.measure import (
        AcceptanceSettings,
        draft_length,
        measure_acceptance,
    )
    from blockdraft_bench.acceptance.report import report_json, write_report
    from blockdraft_bench.acceptance.store import AnswerStore
    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.preparation import chosen_prompts, keep_executables, shown_progress
    from blockdraft_bench.engine.load_pair import load_pair
    from blockdraft_models.decoder.dtypes import compute_dtype
    from blockdraft_models.tokenizer.tokenizer import load_tokenizer
    from blockdraft_models.weights.resolve import resolve_target

    keep_executables()
    tokenizer = load_tokenizer(resolve_target(args.target))
    prompt_sets = chosen_prompts(args, datasets, tokenizer)
    with shown_progress() as progress:
        loading = progress.add_task("loading", total=None)
        decoder = load_pair(
            args.target,
            args.drafter,
            block_size=args.block_size,
            concurrency=args.concurrency,
            context_tokens=args.max_prompt_tokens + args.max_tokens,
            dtype=args.dtype,
        )
        settings = AcceptanceSettings(
            max_tokens=args.max_tokens,
            draft_length=draft_length(args.draft_length, decoder.drafter.block_size),
            stop_token_ids=frozenset(tokenizer.eos_token_ids),
            seed=args.seed,
        )
        identity = settings.identity(decoder, str(compute_dtype(args.dtype)))
        output = output_folder(args.output, "acceptance", identity)
        store = AnswerStore(identity, output / ANSWERS_NAME)
        decoder.warm_up(
            lambda done, total: progress.update(
                loading, description="compiling", completed=done, total=total
            )
        )
        prompts = sum(len(prompt_set.prompts) for prompt_set in prompt_sets)
        decoding = progress.add_task("decoding", total=prompts * len(args.temperature) * 2)
        results = measure_acceptance(
            decoder,
            prompt_sets,
            args.temperature,
            settings,
            store=store,
            on_answer=lambda: progress.advance(decoding),
        )
    decoder.close()
    environment = describe_environment()
    report = report_json(environment, decoder, settings, args.max_prompt_tokens, results)
    text, table = write_report(report, results, output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else table)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    least = {
        "samples": 1,
        "max_tokens": 1,
        "max_prompt_tokens": 1,
        "concurrency": 1,
        "block_size": 2,
    }
    check_at_least(args, least)
    check_temperatures(args.temperature)
