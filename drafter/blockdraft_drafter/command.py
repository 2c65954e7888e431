"""`blockdraft drafter`: run a drafter process."""

import argparse
import sys

from blockdraft_models.weights.cache_dir import default_cache_dir
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.drafter import DrafterSettings

CONFIGURATION = Configuration("drafter", DrafterSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft drafter`."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run a drafter until SIGTERM or SIGINT; return the exit code."""
    settings = CONFIGURATION.read(args)
    configure_logging("drafter", settings.process.log_level)
    try:
        _serve(settings)
    except (ValueError, OSError, RuntimeError) as error:
        # Whatever is wrong with the settings or files, its message says; a trace would hide it.
        print(f"blockdraft drafter: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(settings: DrafterSettings) -> None:
    # Imported here: `blockdraft --help` must not wait for jax.
    import jax
    import uvloop

    from blockdraft_drafter.app import DrafterApp
    from blockdraft_runtime.process import serve

    cache = settings.compilation_cache or default_cache_dir() / "xla"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    async def main() -> None:
        await serve(DrafterApp(settings), settings.process)

    uvloop.run(main())
