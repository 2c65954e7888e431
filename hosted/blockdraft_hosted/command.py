"""`blockdraft hosted`: target and draft model in one process."""

import argparse
from typing import TYPE_CHECKING

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.settings.hosted import HostedSettings
from blockdraft_verifier.command import run_verifier

if TYPE_CHECKING:
    from blockdraft_hosted.drafter import ThreadedDrafter

CONFIGURATION = Configuration("hosted", HostedSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft hosted`."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run both until SIGTERM or SIGINT; return the exit code."""
    settings = CONFIGURATION.read(args)

    def make_drafter() -> "ThreadedDrafter":
        # Imported here: `blockdraft --help` must not wait for them.
        from prometheus_client import CollectorRegistry, start_http_server

        from blockdraft_hosted.drafter import ThreadedDrafter
        from blockdraft_models.executables import keep_programs

        kept_programs = keep_programs("blockdraft_drafter", settings.drafter.compilation_cache)
        registry, process = CollectorRegistry(), settings.verifier.process
        if process.metrics_port is not None:
            # The port of a drafter's metrics where it is a process of its own.
            start_http_server(process.metrics_port + 1, process.metrics_address, registry)
        return ThreadedDrafter(settings.drafter, kept_programs, registry)

    return run_verifier(settings.verifier, make_drafter)
