"""`blockdraft server`: the front door alone."""

import argparse
import logging
from pathlib import Path

from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings, TlsSettings

DEFAULT_LISTEN = "127.0.0.1:50051"

_CONFIG = ServerSettings()
_LIMITS = LimitsSettings()
_LISTEN = ProcessSettings(DEFAULT_LISTEN)

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft server`."""
    parser.add_argument(
        "--target",
        default=_CONFIG.target,
        metavar="SPEC",
        help="target model, for its tokenizer: a known name, a directory, a .gguf file or a hub id "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--verifier",
        action="append",
        dest="verifiers",
        metavar="ADDRESS",
        help=f"address of a verifier; may be repeated (default: {_CONFIG.verifiers[0]})",
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="Prometheus port (default: none)"
    )
    parser.add_argument(
        "--control",
        metavar="ADDRESS",
        help="second, always plaintext address for local health checks (default: none)",
    )
    add_front_door_arguments(parser)


def add_front_door_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that mean the same for `blockdraft server` and `blockdraft serve`."""
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="ADDRESS",
        help="where to listen, host:port or unix:/path (default: %(default)s)",
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="name of the model in requests (default: the target's)"
    )
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="let in only these keys, one per line"
    )
    parser.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain; needs --tls-key"
    )
    parser.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="PEM private key; needs --tls-cert"
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=_LIMITS.max_waiting,
        metavar="N",
        help="requests that may wait beyond what is decoded at once (default: %(default)s)",
    )
    parser.add_argument(
        "--max-prompt-bytes",
        type=int,
        default=_LIMITS.max_prompt_bytes,
        metavar="N",
        help="longest prompt text (default: %(default)s)",
    )
    parser.add_argument(
        "--default-timeout",
        type=float,
        default=_LIMITS.default_timeout_seconds,
        metavar="SECONDS",
        help="deadline of calls that come without one (default: %(default)g)",
    )
    parser.add_argument(
        "--recovery-timeout",
        type=float,
        default=_LIMITS.recovery_seconds,
        metavar="SECONDS",
        help="how long a broken stream waits for a verifier (default: %(default)g)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=_LISTEN.drain_seconds,
        metavar="SECONDS",
        help="how long calls in flight may go on after SIGTERM (default: %(default)g)",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least severe messages to log (default: %(default)s)",
    )


def config_from(args: argparse.Namespace) -> tuple[ServerSettings, ProcessSettings]:
    """Return what the flags say.

    Raises:
        OSError: If a named file cannot be read.
        ValueError: If a value is out of range.
    """
    if (args.tls_cert is None) != (args.tls_key is None):
        raise ValueError("--tls-cert and --tls-key need each other")
    api_keys: frozenset[str] = frozenset()
    if args.api_key_file is not None:
        from blockdraft_server.auth import read_api_keys

        api_keys = read_api_keys(args.api_key_file)
    tls = TlsSettings(args.tls_cert, args.tls_key) if args.tls_cert is not None else None
    config = ServerSettings(
        target=args.target,
        verifiers=tuple(args.verifiers) if args.verifiers else _CONFIG.verifiers,
        model_name=args.model_name,
        api_keys=api_keys,
        tls=tls,
        limits=LimitsSettings(
            max_waiting=args.max_waiting,
            max_prompt_bytes=args.max_prompt_bytes,
            default_timeout_seconds=args.default_timeout,
            recovery_seconds=args.recovery_timeout,
        ),
    )
    listen = ProcessSettings(
        address=args.listen,
        metrics_port=args.metrics_port,
        drain_seconds=args.drain_timeout,
        control_address=args.control,
    )
    return config, listen


def run(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT; return the exit code."""
    configure_logging("server", args.log_level)
    try:
        config, listen = config_from(args)
    except (OSError, ValueError) as error:
        logger.error("%s", error)
        return 2
    # Imported here: `blockdraft --help` must not wait for gRPC.
    import uvloop

    from blockdraft_server.app import run_server

    try:
        uvloop.run(run_server(config, listen))
    except Exception:
        logger.exception("the server failed")
        return 1
    return 0
