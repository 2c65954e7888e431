"""`blockdraft serve`: the processes of one host under a supervisor."""

import argparse
import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockdraft_models.cache import default_cache_dir
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.drafter import (
    DRAFTER_NAMES,
    NO_DRAFTER_STATUS,
    DrafterSettings,
)
from blockdraft_server.supervise.equivalents import EQUIVALENTS
from blockdraft_server.supervise.plan import (
    DRAFTER,
    USAGE_STATUS,
    ChildSpec,
    ServePlan,
    ServeSettings,
)
from blockdraft_server.supervise.ports import held_port, refuse_taken_port, refuse_taken_ports

if TYPE_CHECKING:
    from blockdraft_server.supervise.start_display import StartDisplay

__all__ = ["CONFIGURATION", "EQUIVALENTS", "add_arguments", "run"]

logger = logging.getLogger(__name__)

CONFIGURATION = Configuration("serve", ServeSettings)

EXIT_INTERRUPTED = 130
# Packages that `--learn` needs. They are looked for but never imported by the processes that serve.
_TRAINING = ("blockdraft_training", "optax", "orbax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the target, as a word of its own, and a flag for every setting."""
    CONFIGURATION.add_arguments(parser)
    parser.usage = "%(prog)s [TARGET] [--FLAG VALUE ...]"
    parser.add_argument(
        "target", nargs="?", metavar="TARGET", default=argparse.SUPPRESS, help="as --target"
    )
    # What llama.cpp and SGLang call it; without it, `-hf` would be read as `-h`.
    names = ("-hf", "--hf-repo", "--model-path")
    parser.add_argument(*names, dest="target", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run all processes and return the exit code; `ModuleNotFoundError` if one lacks a package.

    It is 0 after SIGTERM or SIGHUP, 130 after SIGINT, 1 if a process keeps dying, and 2 if the
    settings, or files that they name, do not let one start.
    """
    for package in ("uvloop", "jax"):
        # The children import them: reported here once, and not at every start of each child.
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
            # Checked before anything is downloaded.
            if ServePlan.of(settings, folder, os.environ).learns:
                _require_training()
            # Once, here, where a progress bar can be seen; the processes then find it on disk.
            resolve_target(settings.server.target)
            plan = plan_for_target(settings, folder, os.environ)
            if plan.server is not None and plan.server.openai is not None:
                refuse_taken_port("--openai", plan.server.openai)
            if not plan.follows:
                refuse_taken_ports(plan)
            if plan.learns and plan.verifier.process.metrics_port is None:
                plan = plan.watching(stack.enter_context(held_port()))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            if sys.stderr.isatty() and process.log_format == "text":
                print(f"blockdraft serve: {error}", file=sys.stderr)
            else:
                logger.error("%s", error)
            return USAGE_STATUS
        return asyncio.run(_supervise(plan, settings))


def plan_for_target(settings: ServeSettings, folder: Path, environ: Mapping[str, str]) -> ServePlan:
    """Return the `ServePlan` of settings, without a drafter if none is known for the target.

    `ValueError` also if the files of target or drafter cannot be read.
    """
    plan = ServePlan.of(settings, folder, environ)
    if plan.drafter is not None and settings.names_drafter:
        name = plan.drafter.drafter
        if name.partition(":")[0] not in DRAFTER_NAMES:
            # Downloaded here too, so that an error is reported before anything is started.
            resolve_target(name)
        return plan
    # Where it learns, the trainer makes one if there is none.
    if plan.drafter is None or plan.learns:
        return plan
    if _drafter_exists(plan.drafter, plan.environment):
        return plan
    logger.warning("starting no drafter")
    return ServePlan.of(replace(settings, no_drafter=True), folder, environ)


def _drafter_exists(drafter: DrafterSettings, environment: Mapping[str, str]) -> bool:
    """Return whether the drafter's own command finds a drafter, and let it download that."""
    # A process of its own, because this one imports no models.
    command = [sys.executable, "-m", "blockdraft_drafter"]
    # The rows of the start are about to be drawn where its log would stand.
    process = drafter.process
    if sys.stderr.isatty() and process.log_level == "info":
        process = replace(process, log_level="warning")
    command += DRAFTER.flags(replace(drafter, find=True, process=process))
    # It reads files only, and must not take a chip.
    search = subprocess.run(
        command, env={**environment, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.DEVNULL, check=False
    )
    if search.returncode not in (0, NO_DRAFTER_STATUS):
        # The command said why.
        raise SystemExit(USAGE_STATUS if search.returncode > 0 else 1)
    return search.returncode == 0


def _require_training() -> None:
    for package in _TRAINING:
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"--learn needs {package}, which is not installed: pip install 'blockdraft[train]'"
            )


async def _supervise(plan: ServePlan, settings: ServeSettings) -> int:
    # Imported here: `blockdraft --help` must not wait for gRPC.
    from blockdraft_runtime.process import stop_signals
    from blockdraft_server.supervise.start_display import follow_start
    from blockdraft_server.supervise.summary import summary
    from blockdraft_server.supervise.supervisor import ChildFailedError, Supervisor

    started = time.monotonic()
    children = plan.children()
    display = _start_display(children, settings)
    supervisor = Supervisor(children, sink=display, hang_seconds=settings.hang_timeout_seconds)
    # A slow reader of stderr, or one that has stopped, must not hold up the supervisor.
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(supervisor.output)

    async def announce() -> None:
        try:
            text = await summary(plan, time.monotonic() - started)
        except Exception:
            logger.exception("ready, but there is no summary")
            return
        finally:
            if display is not None:
                display.close()
        if settings.server.process.log_format == "json":
            logger.info("%s", text)
        else:
            supervisor.output.write(f"{text}\n")

    stop_requested = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop_requested, announce))
    following = None
    if display is not None:
        following = asyncio.create_task(follow_start(children, supervisor.was_ready, display))
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        stop_requested.set()
        if display is not None:
            display.close()
        # Where a terminal ends, SIGHUP comes from the kernel, and from the shell again.
        if len(received) > 1 and number is not signal.SIGHUP:
            logger.warning("asked twice: stopping at once")
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, on_signal, number)
    try:
        await running
    except ChildFailedError as error:
        if error.status == USAGE_STATUS:
            # The process said why in its last line.
            logger.error("%s", error)
            return USAGE_STATUS
        logger.error("%s; it said last:\n%s", error, "\n".join(error.last_lines))
        return 1
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED if received[0] is signal.SIGINT else 1
    finally:
        if following is not None:
            following.cancel()
        supervisor.output.drain()
        if display is not None:
            display.close()
            display.join()
    return EXIT_INTERRUPTED if received and received[0] is signal.SIGINT else 0


def _start_display(children: Sequence[ChildSpec], settings: ServeSettings) -> "StartDisplay | None":
    """Return the rows of a start where a person watches: on a terminal, with the usual log."""
    process = settings.server.process
    if not sys.stderr.isatty() or (process.log_level, process.log_format) != ("info", "text"):
        return None
    from blockdraft_server.supervise.child import terminal
    from blockdraft_server.supervise.start_display import StartDisplay

    names = [child.name for child in children if child.health_address is not None]
    cache = settings.verifier.compilation_cache or default_cache_dir() / "xla"
    first = "" if cache.exists() else "; this first start compiles, which takes minutes"
    print(f"starting {', '.join(reversed(names))}{first}", file=sys.stderr)
    return StartDisplay(names[::-1], terminal(), sys.stderr)
