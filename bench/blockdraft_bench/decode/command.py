"""`blockdraft bench decode`: plain decoding and draft methods, one answer at a time."""

import argparse
import sys
from typing import TYPE_CHECKING

from blockdraft_bench.common.datasets import TEST_SETS, read_datasets
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.flag_checks import check_at_least, check_temperatures
from blockdraft_bench.common.flags import (
    TARGET_HELP,
    add_output_arguments,
    add_prompt_arguments,
    output_folder,
)
from blockdraft_runtime.settings.drafter import DTYPES, DrafterSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockdraft_bench.common.timed_answers import DecodedSet
    from blockdraft_bench.decode.setup import DecodeSetup
    from blockdraft_bench.decode.speed import MethodSpeed

SAMPLES_NAME = "samples.jsonl"
METHODS = ("plain", "dflash", "eagle3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft bench decode`."""
    drafter = DrafterSettings()
    option = parser.add_argument
    add_prompt_arguments(
        parser, datasets=TEST_SETS, samples=8, max_tokens=128, max_prompt_tokens=512
    )
    option("--target", default=drafter.target, help=TARGET_HELP)
    option("--method", nargs="+", choices=METHODS, help="else all that a drafter is found for")
    option("--dflash", default=drafter.drafter, metavar="DRAFTER", help="as for a drafter process")
    option("--eagle3", default="eagle3", metavar="DRAFTER", help="as for a drafter process")
    option("--block-size", type=int, default=drafter.block_size, help="block of a random drafter")
    option("--draft-length", type=int, help="tokens of a proposal; else all that a block holds")
    option(
        "--draft-policy",
        choices=("adaptive", "fixed"),
        default="adaptive",
        help="draft as far as it pays, or always as far as allowed",
    )
    option("--temperature", type=float, nargs="+", default=[0.0], help="0 is greedy")
    option("--seed", type=int, default=0, help="of rows, sampling and intervals")
    option("--dtype", choices=DTYPES, default=drafter.dtype, help="of weights, cache and contexts")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write the report, print it; return the exit code."""
    _check(args)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.preparation import chosen_prompts, keep_executables, shown_progress
    from blockdraft_bench.decode.measure import measure_decode
    from blockdraft_bench.decode.report import NAME, write_report
    from blockdraft_bench.decode.setup import set_up
    from blockdraft_bench.decode.store import DecodeStore
    from blockdraft_bench.engine.sample_decoder import SampleDecoder
    from blockdraft_models.tokenizer.tokenizer import load_tokenizer
    from blockdraft_models.weights.resolve import resolve_target

    keep_executables()
    tokenizer = load_tokenizer(resolve_target(args.target))
    prompt_sets = chosen_prompts(args, datasets, tokenizer)
    with shown_progress() as progress:
        loading = progress.add_task("loading", total=None)
        setup = set_up(
            args,
            frozenset(tokenizer.eos_token_ids),
            lambda done, total: progress.update(
                loading, description="compiling", completed=done, total=total
            ),
        )
        settings, environment = setup.settings, describe_environment()
        identity = settings.identity({**setup.models_json(), "dtype": setup.dtype}, environment)
        output = output_folder(args.output, NAME, identity)
        decoder = SampleDecoder(setup.methods.decoders, settings.draft_lengths)
        samples = sum(len(prompt_set.prompts) for prompt_set in prompt_sets)
        decoding = progress.add_task("decoding", total=samples * len(args.temperature))
        try:
            decoded = measure_decode(
                decoder,
                prompt_sets,
                args.temperature,
                settings,
                store=DecodeStore(identity, output / SAMPLES_NAME),
                on_start=lambda dataset: progress.update(decoding, description=dataset),
                on_sample=lambda: progress.advance(decoding),
            )
        except KeyboardInterrupt:
            print(
                f"interrupted; the same with --output {output} goes on from here", file=sys.stderr
            )
            raise
    results = _summarize(decoded, setup)
    setup.close()
    flags = {
        "datasets": [dataset.name for dataset in datasets],
        "samples": args.samples,
        "max_tokens": args.max_tokens,
        "max_prompt_tokens": args.max_prompt_tokens,
        "temperature": args.temperature,
        "draft_policy": args.draft_policy,
        "seed": args.seed,
        "dtype": setup.dtype,
        "concurrency": 1,
    }
    about = {
        **environment,
        **setup.models_json(),
        "settings": flags,
        "recompilations": decoder.recompilations,
    }
    text, table = write_report(about, results, output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else table)
    return 0


def _summarize(decoded: "Sequence[DecodedSet]", setup: "DecodeSetup") -> "list[MethodSpeed]":
    """Sum up each method on each dataset, and look into the answers that differ."""
    from blockdraft_bench.decode.choice_margin import ChoiceMargin
    from blockdraft_bench.decode.divergence import find_divergences
    from blockdraft_bench.decode.speed import summarize_method

    margin = ChoiceMargin(setup.methods.target)
    return [
        summarize_method(
            chosen,
            method,
            draft_length=length,
            seed=setup.settings.seed,
            divergences=find_divergences(chosen, method, margin),
        )
        for chosen in decoded
        for method, length in setup.settings.draft_lengths.items()
    ]


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    # An answer of one token takes no time after its first.
    least = {"samples": 1, "max_tokens": 2, "max_prompt_tokens": 1, "block_size": 2}
    check_at_least(args, least)
    check_temperatures(args.temperature)
    if args.method is not None and len(set(args.method)) < len(args.method):
        raise BenchUsageError("--method has the same name twice")
    if args.draft_length is not None and args.draft_length < 1:
        raise BenchUsageError(f"--draft-length must be at least 1, got {args.draft_length}")
