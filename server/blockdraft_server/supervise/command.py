"""`blockdraft serve`: the processes of one host under a supervisor."""

import argparse
import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_server.supervise.find_drafter import plan_for_target
from blockdraft_server.supervise.plan import ServePlan
from blockdraft_server.supervise.settings import ServeSettings
from blockdraft_server.supervise.shared_port import held_port, refuse_taken_port
from blockdraft_server.supervise.training import require_training

logger = logging.getLogger(__name__)

CONFIGURATION = Configuration("serve", ServeSettings)

EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft serve`: its own, and those of its processes."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run everything until SIGTERM (returns 0) or SIGINT (130); 1 if a process keeps dying.

    Raises:
        ModuleNotFoundError: If what the processes need is not installed.
    """
    for package in ("uvloop", "jax"):
        # The children import them: say it here, once, not in every attempt of each of them.
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    settings = CONFIGURATION.read(args)
    process = settings.server.process
    configure_logging("serve", process.log_level, process.log_format)
    folder = settings.run_dir or Path(tempfile.mkdtemp(prefix="blockdraft-"))
    with contextlib.ExitStack() as stack:
        if settings.run_dir is None:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            # Before anything is fetched.
            if ServePlan.of(settings, folder, os.environ).learns:
                require_training()
            # Once, here, where a progress bar can be seen; the processes then find it on disk.
            resolve_target(settings.server.target)
            plan = plan_for_target(settings, folder, os.environ)
            if plan.learns and plan.verifier.process.metrics_port is None:
                plan = plan.watching(stack.enter_context(held_port()))
            server = plan.server
            if server is not None and server.servers > 1 and not plan.follows:
                refuse_taken_port(server.process.address)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            logger.error("%s", error)
            return 2
        return asyncio.run(_supervise(plan, settings))


async def _supervise(plan: ServePlan, settings: ServeSettings) -> int:
    # Imported here: `blockdraft --help` must not wait for gRPC.
    from blockdraft_server.supervise.announcement import announcement
    from blockdraft_server.supervise.supervisor import ChildFailedError, Supervisor

    started = time.monotonic()

    async def announce() -> None:
        line = await announcement(plan, time.monotonic() - started)
        print(line, file=sys.stderr, flush=True)

    supervisor = Supervisor(
        plan.children(),
        hang_seconds=settings.hang_timeout_seconds,
        start_seconds=settings.start_timeout_seconds,
    )
    stop_requested = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop_requested, announce))
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        stop_requested.set()
        if len(received) > 1:
            logger.warning("asked twice: stopping at once")
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await running
    except ChildFailedError as error:
        logger.error("%s; it said last:\n%s", error, "\n".join(error.last_lines))
        return 1
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED if received[0] is signal.SIGINT else 1
    return EXIT_INTERRUPTED if received and received[0] is signal.SIGINT else 0
