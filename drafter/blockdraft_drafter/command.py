"""`blockdraft drafter`: run a drafter process."""

import argparse
import sys
from pathlib import Path

from blockdraft_models.weights.embedded import default_cache_dir
from blockdraft_runtime.settings.drafter import DEFAULT_LISTEN, DTYPES, DrafterSettings
from blockdraft_runtime.settings.process import ProcessSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    default = DrafterSettings()
    option = parser.add_argument
    option(
        "--target",
        default=default.target,
        help="directory, .gguf file, hub id or the default's name",
    )
    option(
        "--drafter",
        default=default.drafter,
        help="directory, hub id, auto, eagle3 or random[:seed]",
    )
    option("--listen", default=DEFAULT_LISTEN, help="host:port or unix:/path")
    option("--metrics-port", type=int, help="serve Prometheus metrics on this port")
    option(
        "--max-sequences",
        type=int,
        default=default.max_sequences,
        help="most sequences with a context at once",
    )
    option(
        "--max-context-tokens",
        type=int,
        default=default.max_context_tokens,
        help="most positions per sequence",
    )
    option(
        "--max-feature-rows",
        type=int,
        default=default.max_feature_rows,
        help="most feature rows per sequence in one request",
    )
    option("--block-size", type=int, default=default.block_size, help="block of a random drafter")
    option(
        "--draft-layers", type=int, default=default.draft_layers, help="layers of a random drafter"
    )
    option("--dtype", choices=DTYPES, default=default.dtype, help="of weights and contexts")
    option(
        "--compilation-cache",
        type=Path,
        default=default_cache_dir() / "xla",
        help="directory that keeps compiled executables",
    )
    option(
        "--drain-timeout",
        type=float,
        default=ProcessSettings(DEFAULT_LISTEN).drain_seconds,
        help="seconds that calls in flight may go on after SIGTERM",
    )
    option(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least severe level to log",
    )
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter


def run(args: argparse.Namespace) -> int:
    """Run a drafter until a signal stops it; return the exit code."""
    try:
        config = DrafterSettings(
            target=args.target,
            drafter=args.drafter,
            max_sequences=args.max_sequences,
            max_context_tokens=args.max_context_tokens,
            max_feature_rows=args.max_feature_rows,
            block_size=args.block_size,
            draft_layers=args.draft_layers,
            dtype=args.dtype,
        )
        listen = ProcessSettings(args.listen, args.metrics_port, args.drain_timeout)
    except ValueError as error:
        print(f"blockdraft drafter: {error}", file=sys.stderr)
        return 2
    try:
        _serve(config, listen, args)
    except (ValueError, OSError, RuntimeError) as error:
        # Whatever is wrong with the settings or files, its message says; a trace would hide it.
        print(f"blockdraft drafter: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(config: DrafterSettings, listen: ProcessSettings, args: argparse.Namespace) -> None:
    import jax
    import uvloop

    from blockdraft_drafter.app import DrafterApp
    from blockdraft_runtime.logs import configure_logging
    from blockdraft_runtime.process import serve

    configure_logging("drafter", args.log_level)
    jax.config.update("jax_compilation_cache_dir", str(args.compilation_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    async def main() -> None:
        await serve(DrafterApp(config), listen)

    uvloop.run(main())
