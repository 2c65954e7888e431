"""`blockdraft server`: the front door alone."""

import argparse
import logging

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.server import ServerSettings

CONFIGURATION = Configuration("server", ServerSettings)

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft server`."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT; return the exit code.

    Raises:
        ModuleNotFoundError: If traces are wanted and `blockdraft[trace]` is not installed.
    """
    settings = CONFIGURATION.read(args)
    configure_logging("server", settings.process.log_level, settings.process.log_format)
    # Imported here: `blockdraft --help` must not wait for gRPC.
    import uvloop

    from blockdraft_server.app import run_server, version
    from blockdraft_server.auth import read_api_keys
    from blockdraft_server.traces import traces_to

    try:
        file = settings.api_key_file
        api_keys = frozenset() if file is None else read_api_keys(file)
    except (OSError, ValueError) as error:
        logger.error("%s", error)
        return 2
    traces = traces_to(settings.trace_endpoint, version())
    try:
        uvloop.run(run_server(settings, api_keys=api_keys, traces=traces))
    except Exception:
        logger.exception("the server failed")
        return 1
    return 0
