"""`blockdraft server`: the API server alone."""

import argparse
import logging

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.server import ServerSettings

CONFIGURATION = Configuration("server", ServerSettings)
add_arguments = CONFIGURATION.add_arguments

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT; return the exit code.

    `ModuleNotFoundError` if traces are wanted and `blockdraft[trace]` is not installed.
    """
    settings = CONFIGURATION.read(args)
    configure_logging("server", settings.process.log_level, settings.process.log_format)
    # Imported here: `blockdraft --help` must not wait for gRPC.
    import uvloop

    from blockdraft_models.errors import ModelError
    from blockdraft_runtime import version
    from blockdraft_runtime.credentials import UnusableFilesError
    from blockdraft_server.app import run_server
    from blockdraft_server.traces import traces_to

    traces = traces_to(settings.trace_endpoint, version())
    try:
        uvloop.run(run_server(settings, traces))
    except (UnusableFilesError, ModelError, OSError) as error:
        logger.error("%s", error)
        return 2
    except Exception:
        logger.exception("the server failed")
        return 1
    return 0
