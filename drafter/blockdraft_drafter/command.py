"""`blockdraft drafter`: run a drafter process."""

import argparse
import sys

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.drafter import NO_DRAFTER_STATUS, DrafterSettings

CONFIGURATION = Configuration("drafter", DrafterSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft drafter`."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run a drafter until SIGTERM or SIGINT, or only find it; return the exit code."""
    settings = CONFIGURATION.read(args)
    configure_logging("drafter", settings.process.log_level, settings.process.log_format)
    try:
        if settings.find:
            return _find(settings)
        return 1 if _serve(settings) else 0
    except (ValueError, OSError, RuntimeError) as error:
        # The message says what is wrong with the settings or files; a trace would hide it.
        print(f"blockdraft drafter: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _find(settings: DrafterSettings) -> int:
    from blockdraft_drafter.sources import NoDrafterError, find_checkpoint
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    target = load_checkpoint_config(resolve_target(settings.target))
    try:
        path = find_checkpoint(settings.drafter, target, target_spec=settings.target)
    except NoDrafterError as error:
        print(f"blockdraft drafter: {error}", file=sys.stderr)
        return NO_DRAFTER_STATUS
    print(path or settings.drafter)
    return 0


def _serve(settings: DrafterSettings) -> bool:
    """Run the process; return whether it ended because it could not draft any more."""
    # Imported here: `blockdraft --help` must not wait for jax.
    import asyncio

    import uvloop

    from blockdraft_drafter.app import DrafterApp
    from blockdraft_models.executables import keep_programs, require_devices
    from blockdraft_runtime.credentials import peer_server_credentials
    from blockdraft_runtime.process import serve

    kept_programs = keep_programs("blockdraft_drafter", settings.compilation_cache)
    require_devices()

    async def main() -> bool:
        stop_requested = asyncio.Event()
        app = DrafterApp(settings, stop_requested, kept_programs=kept_programs)
        await serve(
            app,
            settings.process,
            credentials=peer_server_credentials(settings.process.address, settings.peer_tls),
            stop_requested=stop_requested,
        )
        app.loading.leave()
        return app.failed

    return uvloop.run(main())
