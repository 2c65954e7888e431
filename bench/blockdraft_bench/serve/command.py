"""`blockdraft bench serve`: a service under load, and what its three processes cost."""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from blockdraft_bench.common.datasets import read_datasets
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.serve.flags import add_arguments, check
from blockdraft_client.cli.options import tls_from

if TYPE_CHECKING:
    from blockdraft_bench.serve.report import BlockDrafter, ServiceAbout
    from blockdraft_bench.serve.service import RunningService
    from blockdraft_client.inspection import ModelInfo
    from blockdraft_runtime.settings.verifier import EngineSettings

__all__ = ["add_arguments", "measure"]

LEVELS_FILE = "levels.jsonl"
SPLIT_FILE = "split.jsonl"


def measure(args: argparse.Namespace, run: Run) -> Outcome:
    """Press a service, compare it with one process."""
    check(args)
    datasets = read_datasets(args.dataset, args.datasets_dir)
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.common.preparation import prepare
    from blockdraft_bench.common.provenance import Target, origin
    from blockdraft_bench.serve.figure import draw
    from blockdraft_bench.serve.load_level import RunKey
    from blockdraft_bench.serve.measure import measure_loads
    from blockdraft_bench.serve.prompts import check_service, pool_of_requests
    from blockdraft_bench.serve.report import ServeReport, markdown
    from blockdraft_bench.serve.request_record import Records
    from blockdraft_bench.serve.settings import engine_config, serve_settings
    from blockdraft_bench.serve.split import Comparison, GroupKey, summarize_split
    from blockdraft_bench.serve.split_measure import measure_split
    from blockdraft_bench.serve.summary import speedups, summarize
    from blockdraft_client.cli.local_server import terminated_like_interrupted

    if args.address is not None and not args.split:
        import jax

        # The accelerators of this machine, if any, may be the service's.
        jax.config.update("jax_platforms", "cpu")
    prepared = prepare(args, datasets)
    names = tuple(dataset.name for dataset in datasets)
    settings, config = serve_settings(args, names, prepared.count), engine_config(args)
    pool = pool_of_requests(prepared.prompt_sets, settings, prepared.tokenizer)
    with terminated_like_interrupted(), _service(args, config, run) as service:
        check_service(service, prepared.tokenizer, pool)
        model = service.model
        about, drafter = _about(args, config, model), _drafter(model)
        target = Target(model.target_fingerprint, model.name)
        prompts = [(request.request_id, request.prompt) for request in pool]
        run.identify(about, target, drafter, settings.deciding, prompts)
        runs = measure_loads(service, pool, settings, run.store(RunKey, Records, LEVELS_FILE), run)
        groups = run.store(GroupKey, Comparison, SPLIT_FILE)
        pair = (args.target, args.drafter, config)
        comparisons = measure_split(service, pair, pool, settings, groups, run)
    report = ServeReport(
        **origin(),  # Not before: it may need the service's accelerator.
        service=about,
        target=target,
        drafter=drafter,
        settings=settings,
        results=tuple(
            summarize(key.level, key.method, found.requests, settings.limits)
            for key, found in runs.items()
        ),
        speedups=tuple(speedups(runs)),
        split=summarize_split(comparisons, settings.seed),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


@contextlib.contextmanager
def _service(
    args: argparse.Namespace, config: "EngineSettings", run: Run
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
    starting = run.phase("starting the service")
    arguments = serve_arguments(args.target, args.drafter, config)
    with own_service(arguments, args.timeout_seconds) as service:
        starting.reach(1, 1)
        yield service


def _about(
    args: argparse.Namespace, config: "EngineSettings", model: "ModelInfo"
) -> "ServiceAbout":
    """Return what is measured; of a service that ran already, what it says of itself."""
    from blockdraft_bench.serve.report import ServiceAbout

    configured_here = args.address is None or args.split
    return ServiceAbout(
        address=args.address,
        draft_policy=config.draft_policy if configured_here else None,
        engine=asdict(config) if configured_here else None,
        max_context_tokens=model.max_context_tokens,
        version=model.server_version,
    )


def _drafter(model: "ModelInfo") -> "BlockDrafter | None":
    from blockdraft_bench.serve.report import BlockDrafter

    drafter = model.drafter
    if drafter is None:
        return None
    return BlockDrafter(drafter.method, drafter.fingerprint, drafter.trained, drafter.block_size)
