"""The parser of the `blockdraft` command.

Each command is a module with `add_arguments(parser)` and `run(args) -> exit code`, imported only
when it is chosen: `blockdraft --help` needs neither gRPC nor JAX, and the client's commands run
where the serving packages are not installed.
"""

import argparse
import contextlib
import errno
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from blockdraft_client.cli.output import (
    FAILED,
    INTERRUPTED,
    USAGE,
    CommandFailedError,
    UsageError,
)
from blockdraft_client.cli.unknown_arguments import unknown_arguments
from blockdraft_client.errors import ApiError, BlockdraftError

DESCRIPTION = "Lossless speculative decoding of language models as a gRPC service."
EPILOG = (
    "Results go to stdout, all else to stderr. Exit codes: 0 ok, 1 the server failed, "
    "2 wrong usage, 130 interrupted. See `blockdraft COMMAND --help` for a command."
)


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        module: Where it is implemented; by name, since the client must not import the servers.
        summary: One line of help.
        extra: Optional dependencies it needs, if any.
    """

    module: str
    summary: str
    extra: str | None = None


COMMANDS = {
    "generate": Command("blockdraft_client.cli.generate", "generate one completion"),
    "chat": Command("blockdraft_client.cli.chat", "talk to the model"),
    "health": Command("blockdraft_client.cli.health", "say whether the server takes requests"),
    "models": Command("blockdraft_client.cli.models", "describe the served model and drafter"),
    "debug": Command("blockdraft_client.cli.debug", "show processes on this host from inside"),
    "demo": Command("blockdraft_client.cli.demo", "start everything, measure, stop", "serve"),
    "serve": Command(
        "blockdraft_server.supervise.command", "run server, verifier, drafter", "serve"
    ),
    "server": Command("blockdraft_server.command", "run the API server alone", "serve"),
    "verifier": Command("blockdraft_verifier.command", "run the target model alone", "serve"),
    "drafter": Command("blockdraft_drafter.command", "run the draft model alone", "serve"),
    "hosted": Command("blockdraft_hosted.command", "run both models in one process", "serve"),
    "keys": Command("blockdraft_server.keys_command", "make API keys"),
    "train": Command("blockdraft_training.command", "make corpora and drafters", "train"),
    "learn": Command("blockdraft_training.learn_command", "learn while serving", "train"),
    "compile": Command("blockdraft_aot.command", "compile for TPUs on a host without one", "tpu"),
    "bench": Command("blockdraft_bench.command", "measure", "bench"),
    "completion": Command("blockdraft_client.cli.completion", "complete commands in your shell"),
    "version": Command("blockdraft_client.cli.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `blockdraft` with these arguments (default: the process's) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["--version"]:
            arguments = ["version"]
        if not arguments or arguments[0] not in COMMANDS:
            # Ends in help, or in an error that lists the commands.
            _root_parser().parse_args(arguments)
            return USAGE
        return _run_command(arguments[0], arguments[1:])
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except UsageError as error:
        return _report(str(error), USAGE)
    except CommandFailedError as error:
        return _report(str(error), FAILED)
    except BlockdraftError as error:
        return _report(_describe(error), FAILED)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Output that cannot be written; keep Python from flushing it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that has gone wants no more (`blockdraft ... | head`).
        return FAILED if error.errno == errno.EPIPE else _report(str(error), FAILED)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line: the usage of most commands fills half a screen."""

    def error(self, message: str) -> NoReturn:
        """Exit with what is wrong."""
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def _root_parser() -> argparse.ArgumentParser:
    parser = _Parser("blockdraft", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    return parser


def _run_command(name: str, arguments: Sequence[str]) -> int:
    # gRPC reads this when it is imported. It would tell users of every connection that ends, on
    # stderr, in words of its own; whatever matters of that reaches them as an error.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    command = COMMANDS[name]
    with _missing_extra_explained(name, command.extra):
        module: Any = importlib.import_module(command.module)
        parser = _Parser(f"blockdraft {name}", description=command.summary, allow_abbrev=False)
        module.add_arguments(parser)
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            equivalents = getattr(module, "EQUIVALENTS", {})
            parser.error(unknown_arguments(unknown, arguments, parser, equivalents))
        return int(module.run(args))


@contextlib.contextmanager
def _missing_extra_explained(name: str, extra: str | None) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if extra is None or not package or importlib.util.find_spec(package) is not None:
            raise
        raise UsageError(
            f"`blockdraft {name}` needs {package}, which is not installed: "
            f"pip install 'blockdraft[{extra}]'"
        ) from error


def _describe(error: BlockdraftError) -> str:
    text = str(error)
    if isinstance(error, ApiError):
        if error.retry_after_seconds is not None:
            text += f" (try again in {error.retry_after_seconds:g} s)"
        if error.request_id:
            text += f" [request {error.request_id}]"
    return text


def _report(message: str, code: int) -> int:
    print(f"blockdraft: {message}", file=sys.stderr)
    return code
