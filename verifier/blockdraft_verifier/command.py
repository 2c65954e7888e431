"""`blockdraft verifier`: the target model alone."""

import argparse
import logging
import os

from blockdraft_models.weights.embedded import default_cache_dir
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.slice import slice_from
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings, VerifierSettings

DEFAULT_LISTEN = "unix:/tmp/blockdraft-verifier.sock"

_CONFIG = VerifierSettings()
_ENGINE = _CONFIG.engine
_LIMITS = _ENGINE.scheduler

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft verifier`."""
    parser.add_argument(
        "--target",
        default=_CONFIG.target,
        metavar="SPEC",
        help="target model: a known name, a directory, a .gguf file or a hub id "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="ADDRESS",
        help="where to listen, host:port or unix:/path (default: %(default)s)",
    )
    parser.add_argument(
        "--drafter",
        default=_CONFIG.drafter_address,
        metavar="ADDRESS",
        help='address of the drafter, or "none" to decode plainly (default: %(default)s)',
    )
    parser.add_argument(
        "--drafter-wait",
        type=float,
        default=_CONFIG.drafter_wait_seconds,
        metavar="SECONDS",
        help="how long to wait for the drafter before serving without (default: %(default)g)",
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="Prometheus port (default: none)"
    )
    add_slice_arguments(parser)
    add_engine_arguments(parser)
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=ProcessSettings(DEFAULT_LISTEN).drain_seconds,
        metavar="SECONDS",
        help="how long calls in flight may go on after SIGTERM (default: %(default)g)",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least severe messages to log (default: %(default)s)",
    )


def add_slice_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that make this process one of several."""
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="on a slice of several hosts: where its processes meet, on the host of process 0 "
        "(default: what the environment says)",
    )
    parser.add_argument(
        "--num-processes", type=int, metavar="N", help="processes of the slice, one per host"
    )
    parser.add_argument(
        "--process-id", type=int, metavar="N", help="number of this process; 0 leads"
    )


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the engine."""
    for flag, default, metavar, text in (
        ("--max-sequences", _LIMITS.max_sequences, "N", "sequences decoded at once"),
        ("--max-context-tokens", _LIMITS.max_context_tokens, "N", "tokens of one sequence"),
        ("--max-step-tokens", _LIMITS.max_step_tokens, "N", "tokens of one forward pass"),
        ("--page-size", _ENGINE.page_size, "N", "tokens per page of the KV cache"),
        ("--num-pages", _ENGINE.num_pages, "N", "pages of the KV cache"),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar=metavar, help=f"{text} (default: {default})"
        )
    parser.add_argument(
        "--dtype",
        default=_ENGINE.dtype,
        choices=("auto", "float32", "bfloat16"),
        help="element type of weights and cache; auto is bfloat16 on TPU, float32 elsewhere "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--weights",
        default=_ENGINE.weights,
        choices=("float", "int8"),
        help="int8 rounds the matrices of the target's layers to a byte each "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--draft-policy",
        default=_ENGINE.draft_policy,
        choices=("adaptive", "fixed"),
        help="adaptive drafts as far as measurements say it pays, fixed always as far as allowed "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--draft-groups",
        type=int,
        default=_ENGINE.draft_groups,
        choices=(1, 2),
        help="2 verifies one half of the sequences while the other is drafted for; pays when the "
        "drafter has a device of its own (default: %(default)s)",
    )


def config_from(args: argparse.Namespace) -> tuple[VerifierSettings, ProcessSettings]:
    """Return what the flags say.

    Raises:
        ValueError: If a value is out of range.
    """
    engine = EngineSettings(
        scheduler=SchedulerSettings(
            max_sequences=args.max_sequences,
            max_step_tokens=args.max_step_tokens,
            max_context_tokens=args.max_context_tokens,
        ),
        page_size=args.page_size,
        num_pages=args.num_pages,
        dtype=args.dtype,
        weights=args.weights,
        draft_policy=args.draft_policy,
        draft_groups=args.draft_groups,
    )
    config = VerifierSettings(
        target=args.target,
        drafter_address=None if args.drafter == "none" else args.drafter,
        drafter_wait_seconds=args.drafter_wait,
        engine=engine,
        slice=slice_from(args.coordinator, args.num_processes, args.process_id, os.environ),
    )
    return config, ProcessSettings(args.listen, args.metrics_port, args.drain_timeout)


def run(args: argparse.Namespace) -> int:
    """Run the verifier until SIGTERM or SIGINT; return the exit code."""
    configure_logging("verifier", args.log_level)
    try:
        config, listen = config_from(args)
    except ValueError as error:
        logger.error("%s", error)
        return 2
    # Imported here: `blockdraft --help` must not wait for jax.
    import asyncio

    import jax
    import uvloop

    from blockdraft_runtime.process import serve
    from blockdraft_verifier.app import VerifierApp
    from blockdraft_verifier.follower import FollowerApp

    jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    async def main() -> bool:
        stop_requested = asyncio.Event()
        app: VerifierApp | FollowerApp
        if config.slice is None or config.slice.leads:
            app = VerifierApp(config, stop_requested)
        else:
            app = FollowerApp(config, stop_requested, listen.drain_seconds)
        await serve(app, listen, stop_requested=stop_requested)
        return not app.failed

    try:
        failed = not uvloop.run(main())
    except (ValueError, RuntimeError, OSError) as error:
        logger.error("%s", error)
        return 1
    if failed and config.slice is not None:
        # JAX would wait for the processes that are gone, and then abort with pages of its own.
        logging.shutdown()
        os._exit(1)
    return 1 if failed else 0
