"""`blockdraft serve`: drafter, verifier and server of one host under a supervisor."""

import argparse
import asyncio
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
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_server.command import add_front_door_arguments
from blockdraft_server.supervise.plan import ServePlan

logger = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft serve`; what is left unset is up to each process."""
    parser.add_argument(
        "--target",
        default=ServerSettings().target,
        metavar="SPEC",
        help="model to serve: a known name, a directory, a .gguf file or a hub id "
        "(default: %(default)s)",
    )
    drafting = parser.add_mutually_exclusive_group()
    drafting.add_argument(
        "--drafter", metavar="SPEC", help="draft model (default: what `blockdraft drafter` takes)"
    )
    drafting.add_argument("--no-drafter", action="store_true", help="decode plainly")
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), help="precision of the models"
    )
    parser.add_argument(
        "--weights",
        choices=("float", "int8"),
        help="int8 rounds the matrices of the target's layers to a byte each",
    )
    parser.add_argument(
        "--max-sequences", type=int, metavar="N", help="most sequences decoded at once"
    )
    parser.add_argument(
        "--max-context-tokens", type=int, metavar="N", help="longest prompt and answer together"
    )
    parser.add_argument(
        "--max-step-tokens", type=int, metavar="N", help="most tokens of one forward pass"
    )
    parser.add_argument("--num-pages", type=int, metavar="N", help="pages of the KV cache")
    parser.add_argument(
        "--draft-policy", choices=("adaptive", "fixed"), help="how draft lengths are chosen"
    )
    parser.add_argument(
        "--tpu-split",
        metavar="V+D",
        help="TPU chips of the verifier and of the drafter, 0 to decode plainly "
        "(default: half each)",
    )
    parser.add_argument(
        "--tpu-host",
        metavar="TYPE",
        help="the TPU this host has, such as v5p-8 or v5e-4 (default: what the environment says)",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="Prometheus port of the server; verifier and drafter take the next two "
        "(default: none)",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="folder of the sockets between the processes (default: a private temporary one)",
    )
    add_front_door_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run everything until SIGTERM (returns 0) or SIGINT (130); 1 if a process keeps dying.

    Raises:
        ModuleNotFoundError: If what the processes need is not installed.
    """
    for package in ("uvloop", "jax"):
        # The children import them: say it here, once, not in every attempt of each of them.
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    configure_logging("serve", args.log_level)
    folder = args.run_dir or Path(tempfile.mkdtemp(prefix="blockdraft-"))
    try:
        try:
            plan = ServePlan.from_arguments(args, folder, os.environ)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Once, here, where a progress bar can be seen; the processes then find it on disk.
            resolve_target(args.target)
        except (OSError, ValueError) as error:
            logger.error("%s", error)
            return 2
        return asyncio.run(_supervise(plan))
    finally:
        if args.run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _supervise(plan: ServePlan) -> int:
    # Imported here: `blockdraft --help` must not wait for gRPC.
    from blockdraft_server.supervise.supervisor import ChildFailedError, Supervisor

    started = time.monotonic()

    async def announce() -> None:
        from blockdraft_server.supervise.describe import describe_drafter

        if plan.follows and plan.host is not None:
            print(
                f"blockdraft takes part in the verifier of {plan.host.hostnames[0]} "
                f"as process {plan.host.worker_id} of {plan.host.num_hosts}",
                file=sys.stderr,
                flush=True,
            )
            return
        drafter = await describe_drafter(plan.verifier_address)
        seconds = time.monotonic() - started
        print(
            f"blockdraft serves {plan.model} on {plan.listen}, drafter: {drafter}, "
            f"ready after {seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )

    supervisor = Supervisor(plan.children())
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
