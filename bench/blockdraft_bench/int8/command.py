"""`blockdraft bench int8`: how far int8 weights move a target's logits."""

import argparse
import sys

from blockdraft_bench.common.datasets import TEST_SETS, read_datasets
from blockdraft_bench.common.flag_checks import check_at_least
from blockdraft_bench.common.flags import (
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    output_folder,
)
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench int8`."""
    defaults = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=TEST_SETS, samples=4, max_tokens=128, max_prompt_tokens=384
    )
    option("--target", default=defaults.target, help=TARGET_HELP)
    option("--seed", type=int, default=0, help="of the choice of rows")
    option("--dtype", choices=DTYPES, default=defaults.dtype, help="of what is not int8")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write the report, print it; return the exit code."""
    check_at_least(args, {"samples": 1, "max_tokens": 1, "max_prompt_tokens": 1})
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.line_store import digest
    from blockdraft_bench.common.preparation import chosen_prompts, keep_executables, shown_progress
    from blockdraft_bench.int8.measure import Int8Settings, measure_int8
    from blockdraft_bench.int8.report import NAME, report_json, write_report
    from blockdraft_models.decoder.dtypes import compute_dtype
    from blockdraft_models.tokenizer.tokenizer import load_tokenizer
    from blockdraft_models.weights.resolve import resolve_target

    keep_executables()
    path = resolve_target(args.target)
    tokenizer = load_tokenizer(path)
    prompt_sets = chosen_prompts(args, datasets, tokenizer)
    prompts = sum(len(prompt_set.prompts) for prompt_set in prompt_sets)
    with shown_progress() as progress:
        loading = progress.add_task("loading", total=None)
        comparing = progress.add_task("comparing", total=2 * prompts)
        result = measure_int8(
            path,
            prompt_sets,
            Int8Settings(
                args.max_tokens,
                args.max_prompt_tokens,
                frozenset(tokenizer.eos_token_ids),
                args.dtype,
            ),
            on_compiled=lambda done, total: progress.update(
                loading, description="compiling", completed=done, total=total
            ),
            on_answer=lambda: progress.advance(comparing),
        )
    settings = {
        "target": {
            "name": result.checkpoint.config.name,
            "fingerprint": result.checkpoint.fingerprint,
        },
        "dtype": compute_dtype(args.dtype).name,
        "max_tokens": args.max_tokens,
        "max_prompt_tokens": args.max_prompt_tokens,
        "seed": args.seed,
    }
    environment = describe_environment()
    identity = digest([settings, args.dataset, args.samples, environment["hardware"]])
    output = output_folder(args.output, NAME, identity)
    text, table = write_report(report_json(environment, settings, result), output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else table)
    return 0
