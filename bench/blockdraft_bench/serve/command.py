"""`blockdraft bench serve`: a service under load, and what its three processes cost."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from blockdraft_bench.common.datasets import read_datasets
from blockdraft_bench.common.flags import output_folder
from blockdraft_bench.serve.flags import add_arguments, check
from blockdraft_client.cli.options import tls_from

if TYPE_CHECKING:
    from rich.progress import Progress

    from blockdraft_bench.serve.service import RunningService
    from blockdraft_runtime.settings.verifier import EngineSettings

__all__ = ["add_arguments", "run"]

LEVELS_NAME = "levels.jsonl"
SPLIT_NAME = "split.jsonl"


def run(args: argparse.Namespace) -> int:
    """Measure, write the report, print it; return the exit code."""
    check(args)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.

    from blockdraft_bench.common.environment import describe_environment
    from blockdraft_bench.common.preparation import chosen_prompts, shown_progress
    from blockdraft_bench.serve.measure import measure_loads
    from blockdraft_bench.serve.prompts import check_service, pool_of_requests
    from blockdraft_bench.serve.report import write_report
    from blockdraft_bench.serve.settings import ServeSettings, engine_config
    from blockdraft_bench.serve.split_measure import SplitStore, measure_split
    from blockdraft_bench.serve.store import LevelStore
    from blockdraft_bench.serve.summary import Limits
    from blockdraft_client.cli.local_server import terminated_like_interrupted
    from blockdraft_models.tokenizer.tokenizer import load_tokenizer
    from blockdraft_models.weights.resolve import resolve_target

    _configure_jax(args)
    settings, config = ServeSettings.from_arguments(args), engine_config(args)
    tokenizer = load_tokenizer(resolve_target(args.target))
    prompt_sets = chosen_prompts(args, datasets, tokenizer)
    pool = pool_of_requests(prompt_sets, settings, tokenizer)
    with (
        terminated_like_interrupted(),
        shown_progress() as progress,
        _service(args, config, progress) as service,
    ):
        check_service(service, tokenizer, pool)
        about = _describe(args, config, service)
        identity = settings.identity(about, pool)
        output = output_folder(args.output, "serve", identity)
        levels = LevelStore(identity, output / LEVELS_NAME)
        groups = SplitStore(identity, output / SPLIT_NAME)
        runs = measure_loads(service, pool, settings, levels, progress)
        pair = (args.target, args.drafter, config)
        comparisons = measure_split(service, pair, pool, settings, groups, progress)
    environment = describe_environment()  # Not before: it may need the service's accelerator.
    limits = Limits(args.slo_ttft_seconds, args.slo_tpot_seconds, args.price_per_hour)
    report = {
        "benchmark": "serve",
        **environment,
        **about,
        "settings": {
            **asdict(settings),
            **asdict(limits),
            "datasets": [dataset.name for dataset in datasets],
            "prompts": len(pool),
            "max_prompt_tokens": args.max_prompt_tokens,
        },
    }
    text, tables = write_report(report, runs, comparisons, limits, output)
    print(f"written to {output}", file=sys.stderr)
    sys.stdout.write(text if args.json else tables)
    return 0


def _configure_jax(args: argparse.Namespace) -> None:
    import jax

    from blockdraft_bench.common.preparation import keep_executables

    if args.address is not None and not args.split:
        # The accelerators of this machine, if any, may be the service's.
        jax.config.update("jax_platforms", "cpu")
    keep_executables()


@contextlib.contextmanager
def _service(
    args: argparse.Namespace, config: "EngineSettings", progress: "Progress"
) -> Iterator["RunningService"]:
    """Reach the service, or start one and stop it in the end."""
    from blockdraft_bench.serve.service import (
        Connection,
        own_service,
        running_service,
        serve_arguments,
    )

    if args.address is not None:
        connection = Connection(args.address, args.api_key, tls_from(args), args.timeout_seconds)
        drafts = args.split or args.method is None or "drafted" in args.method
        yield running_service(connection, needs_drafter=drafts)
        return
    arguments = serve_arguments(args.target, args.drafter, config)
    starting = progress.add_task("starting the service", total=None)
    with own_service(arguments, args.timeout_seconds) as service:
        progress.update(starting, description="service ready", total=1, completed=1)
        yield service


def _describe(
    args: argparse.Namespace, config: "EngineSettings", service: "RunningService"
) -> dict[str, Any]:
    """Return what is measured; of a service that ran already, what it says of itself."""
    model = service.model
    started = args.address is None
    return {
        "service": {
            "address": args.address,
            "draft_policy": config.draft_policy if started or args.split else None,
            "engine": asdict(config) if started or args.split else None,
            "max_context_tokens": model.max_context_tokens,
            "version": model.server_version,
        },
        "target": {"name": model.name, "fingerprint": model.target_fingerprint},
        "drafter": None
        if model.drafter is None
        else {
            "method": model.drafter.method,
            "fingerprint": model.drafter.fingerprint,
            "trained": model.drafter.trained,
            "block_size": model.drafter.block_size,
        },
    }
