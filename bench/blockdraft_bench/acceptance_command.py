"""`blockdraft bench acceptance`: what a drafter gains, by dataset and temperature."""

import argparse
import datetime
import sys
from pathlib import Path

from blockdraft_bench.datasets import TEST_SETS, choose_samples, read_datasets
from blockdraft_bench.flag_checks import check_at_least, check_temperatures
from blockdraft_drafter.settings import DTYPES, DrafterConfig
from blockdraft_models.embedded import default_cache_dir

RESULTS = Path("bench-results")
ANSWERS_NAME = "samples.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench acceptance`."""
    drafter = DrafterConfig()
    option = parser.add_argument
    option("--dataset", nargs="+", default=list(TEST_SETS), metavar="SET", help="names or files")
    option(
        "--datasets-dir",
        type=Path,
        help="where NAME.jsonl lie; else $BLOCKDRAFT_DATASETS or ./datasets",
    )
    option("--samples", type=int, default=32, help="rows of each dataset, spread over the file")
    option("--max-tokens", type=int, default=256, help="most tokens of an answer")
    option("--max-prompt-tokens", type=int, default=1024, help="longer messages lose their end")
    option("--target", default=drafter.target, help="directory, .gguf file, hub id or known name")
    option("--drafter", default=drafter.drafter, help="directory, hub id, random[:seed] or auto")
    option("--block-size", type=int, default=drafter.block_size, help="block of a random drafter")
    option("--draft-length", type=int, help="tokens of a proposal; else all that a block holds")
    option("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="0 is greedy")
    option("--seed", type=int, default=0, help="of rows, sampling and intervals")
    option("--concurrency", type=int, default=8, help="answers decoded at a time")
    option("--dtype", choices=DTYPES, default=drafter.dtype, help="of weights, cache and contexts")
    option("--output", type=Path, help=f"folder for the files; else a new one in {RESULTS}")
    option("--json", action="store_true", help="print the JSON report instead of the table")


def run(args: argparse.Namespace) -> int:
    """Measure, write the report, print it; return the exit code."""
    _check(args)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    import jax
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from blockdraft_bench.acceptance_report import report_json, write_report
    from blockdraft_bench.answer_store import AnswerStore
    from blockdraft_bench.environment import describe_environment
    from blockdraft_bench.load_pair import load_pair
    from blockdraft_bench.measure import AcceptanceSettings, draft_length, measure_acceptance
    from blockdraft_bench.prompts import make_prompts
    from blockdraft_models.dtypes import compute_dtype
    from blockdraft_models.resolve import resolve_target
    from blockdraft_models.tokenizer import load_tokenizer

    jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    tokenizer = load_tokenizer(resolve_target(args.target))
    prompt_sets = [
        make_prompts(
            dataset.name,
            choose_samples(dataset.samples, args.samples, args.seed),
            tokenizer,
            args.max_prompt_tokens,
        )
        for dataset in datasets
    ]
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
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
        output = args.output or RESULTS / f"acceptance-{datetime.date.today()}-{identity}"
        output.mkdir(parents=True, exist_ok=True)
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
