"""`blockdraft bench serve`: a service under load, and what its three processes cost."""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.serve.settings import ServeSettings
from blockdraft_client.cli.options import tls_from
from blockdraft_runtime.configuration.command import Configuration

if TYPE_CHECKING:
    from blockdraft_bench.serve.report import BlockDrafter, ServiceAbout
    from blockdraft_bench.serve.service import RunningService
    from blockdraft_client.results import ModelInfo

LEVELS_FILE = "levels.jsonl"
SPLIT_FILE = "split.jsonl"
CONFIGURATION = Configuration("bench serve", ServeSettings)
add_arguments = CONFIGURATION.add_arguments


def measure(settings: ServeSettings, run: Run) -> Outcome:
    """Press a service, compare it with one process."""
    datasets = settings.prompts.read()
    # Imported here: `--help` must not wait for jax, nor a wrong file name.
    from blockdraft_bench.common.prompts import prepare
    from blockdraft_bench.common.provenance import Target, origin
    from blockdraft_bench.serve.figure import draw
    from blockdraft_bench.serve.load_level import RunKey
    from blockdraft_bench.serve.measure import measure_loads
    from blockdraft_bench.serve.prompts import check_service, pool_of_requests
    from blockdraft_bench.serve.report import ServeReport, markdown
    from blockdraft_bench.serve.request_record import Records
    from blockdraft_bench.serve.split import Comparison, GroupKey, summarize_split
    from blockdraft_bench.serve.split_measure import measure_split
    from blockdraft_bench.serve.summary import costs_of_learning, speedups, summaries
    from blockdraft_client.cli.local_server import terminated_like_interrupted

    if settings.service.address is not None and not settings.split.split:
        import jax

        # The accelerators of this machine, if any, may be the service's.
        jax.config.update("jax_platforms", "cpu")
    prepared = prepare(settings.prompts, datasets)
    asked = settings.asked(tuple(dataset.name for dataset in datasets), prepared.count)
    pool = pool_of_requests(prepared.prompt_sets, asked, prepared.tokenizer)
    with terminated_like_interrupted(), _service(settings, run) as service:
        check_service(service, prepared.tokenizer, pool)
        model = service.model
        about, drafter = _about(settings, model), _drafter(model)
        target = Target(model.target_fingerprint, model.name)
        prompts = [(request.request_id, request.prompt) for request in pool]
        run.identify(about, target, drafter, asked.deciding, prompts)
        runs = measure_loads(service, pool, asked, run.store(RunKey, Records, LEVELS_FILE), run)
        groups = run.store(GroupKey, Comparison, SPLIT_FILE)
        pair = (settings.prompts.target, settings.service.drafter, settings.engine)
        comparisons = measure_split(service, pair, pool, asked, groups, run)
    report = ServeReport(
        **origin(run.commit),  # Not before: it may need the service's accelerator.
        service=about,
        target=target,
        drafter=drafter,
        settings=asked,
        results=tuple(summaries(runs, asked)),
        speedups=tuple(speedups(runs)),
        learning=tuple(costs_of_learning(runs)),
        split=summarize_split(comparisons, asked.seed),
    )
    return Outcome(report, markdown(report), {"": draw(report)})


@contextlib.contextmanager
def _service(settings: ServeSettings, run: Run) -> Iterator["RunningService"]:
    """Reach the service, or start one and stop it in the end."""
    from blockdraft_bench.serve.service import (
        Connection,
        own_service,
        running_service,
        serve_arguments,
    )

    wanted, timeout_seconds = settings.service, settings.load.runs.timeout_seconds
    if wanted.address is not None:
        tls = tls_from(argparse.Namespace(**asdict(wanted)))
        connection = Connection(wanted.address, wanted.api_key, tls, timeout_seconds)
        yield running_service(connection, needs_drafter=settings.drafts)
        return
    starting = run.phase("starting the service")
    drafter = None if wanted.no_drafter else wanted.drafter
    with contextlib.ExitStack() as stack:
        learn_dir = None
        if settings.learns:
            learn_dir = Path(stack.enter_context(TemporaryDirectory(prefix="blockdraft-")))
        arguments = serve_arguments(settings.prompts.target, drafter, settings.engine, learn_dir)
        service = stack.enter_context(own_service(arguments, timeout_seconds))
        starting.reach(1, 1)
        yield service


def _about(settings: ServeSettings, model: "ModelInfo") -> "ServiceAbout":
    """Return what is measured; of a service that ran already, what it says of itself."""
    from blockdraft_bench.serve.report import ServiceAbout

    address, engine = settings.service.address, settings.engine
    configured_here = address is None or settings.split.split
    return ServiceAbout(
        address=address,
        draft_policy=engine.draft_policy if configured_here else None,
        engine=asdict(engine) if configured_here else None,
        max_context_tokens=model.max_context_tokens,
        version=model.server_version,
    )


def _drafter(model: "ModelInfo") -> "BlockDrafter | None":
    from blockdraft_bench.serve.report import BlockDrafter

    drafter = model.drafter
    if drafter is None:
        return None
    return BlockDrafter(drafter.method, drafter.fingerprint, drafter.trained, drafter.block_size)
