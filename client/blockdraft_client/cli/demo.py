"""`blockdraft demo`: start everything, stream a completion, measure with and without drafting."""

import argparse
import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from blockdraft_client.cli.local_server import LocalServer, terminated_like_interrupted
from blockdraft_client.cli.output import FAILED, OK, UsageError, print_json
from blockdraft_client.params import ChatMessage, SpeculationParams
from blockdraft_runtime.terminal import TerminalRows

if TYPE_CHECKING:
    from blockdraft_client.cli.demo_report import DemoReport
    from blockdraft_client.client import Client
    from blockdraft_client.results import Completion

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_PROMPT = (
    "A baker makes 24 muffins in the morning and 18 in the afternoon. She packs them in boxes "
    "of 6. How many boxes does she fill? Please reason step by step."
)
STARTUP_SECONDS = 600.0
CALL_SECONDS = 300.0
# Measured runs of each kind; a median needs as many.
RUNS = 3
ANSWER_TOKENS = 96
MIN_CONTEXT_TOKENS = 512
TEMPLATE_TOKENS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft demo`."""
    option = parser.add_argument
    option("--model", default=DEFAULT_MODEL, metavar="SPEC", help="model (default: %(default)s)")
    option("--drafter", metavar="SPEC", help="drafter (default: that of `blockdraft serve`)")
    option("--prompt", default=DEFAULT_PROMPT, help="the prompt (default: %(default)s)")
    option("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the demo; fails if drafting changed the output."""
    for package in ("blockdraft_server", "jax"):
        # The child imports them; say here and now, and with the usual hint, if they are missing.
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    with terminated_like_interrupted():
        _fetch_target(args.model)
        report = _measure(args)
    if args.json:
        print_json(report.to_json())
    else:
        _print_report(report)
    return OK if report.identical else FAILED


def _fetch_target(spec: str) -> None:
    """Have the target on disk before the processes start, with a progress bar on a terminal."""
    # By name: the client must be importable without the packages that serve.
    resolve = importlib.import_module("blockdraft_models.weights.resolve")
    try:
        resolve.resolve_target(spec)
    except ValueError as error:
        raise UsageError(str(error)) from error


def serve_arguments(args: argparse.Namespace) -> list[str]:
    """Return the flags of `blockdraft serve`: no more capacity than one such completion needs.

    Fewer and smaller shapes compile sooner, which is most of the time of a first start.
    """
    # No token is shorter than a byte; the chat template adds a few dozen of its own.
    needed = len(args.prompt.encode()) + TEMPLATE_TOKENS + ANSWER_TOKENS
    context = max(MIN_CONTEXT_TOKENS, 1 << (needed - 1).bit_length())
    arguments = ["--target", args.model, "--max-sequences", "1"]
    arguments += ["--max-model-len", str(context)]
    # The prompt is completed again and again, and nothing shall be drafted from the time before.
    arguments += ["--recent-completions", "0"]
    if args.drafter is not None:
        arguments += ["--drafter", args.drafter]
    return arguments


def _measure(args: argparse.Namespace) -> "DemoReport":
    from blockdraft_client.client import Client

    with (
        contextlib.closing(TerminalRows(sys.stderr)) as rows,
        LocalServer(serve_arguments(args)) as server,
    ):
        rows.print(f"starting server, verifier and drafter for {args.model}")

        def show(line: str) -> None:
            # Of a line of the log, process and message.
            rows.show([re.sub(r"^\S+Z [A-Z]+ +(\S+) [\w.]+: ", r"\1: ", line) or "loading"])

        server.wait_ready(STARTUP_SECONDS, show)
        rows.close()
        with Client(server.address, api_key="", tls=False, timeout=CALL_SECONDS) as client:
            rows.print("answering, with drafting:")
            answer = _stream(client, args)
            report = compare(client, args.prompt, answer, lambda line: rows.show([line]))
            rows.close()
        rows.print("stopping")
    return report


def compare(
    client: "Client", prompt: str, answer: "Completion", on_round: Callable[[str], None]
) -> "DemoReport":
    """Answer a prompt plainly and drafted in turn, after a first drafted `answer`."""
    from blockdraft_client.cli.demo_report import demo_report

    warm_up = [answer, generate(client, prompt, drafted=False)]
    plain: list[Completion] = []
    drafted: list[Completion] = []
    # Alternating spreads whatever else the machine does over both kinds.
    for number in range(1, RUNS + 1):
        on_round(f"measuring, round {number} of {RUNS}")
        plain.append(generate(client, prompt, drafted=False))
        drafted.append(generate(client, prompt, drafted=True))
    return demo_report(client.model(), warm_up, plain, drafted)


def _stream(client: "Client", args: argparse.Namespace) -> "Completion":
    # With --json, stdout is for the object alone.
    out = sys.stderr if args.json else sys.stdout
    prompt = [ChatMessage("user", args.prompt)]
    with client.stream(prompt, max_tokens=ANSWER_TOKENS) as stream:
        for chunk in stream:
            print(chunk.text, end="", file=out, flush=True)
        print("\n", file=out, flush=True)
        return stream.completion()


def generate(client: "Client", prompt: str, *, drafted: bool) -> "Completion":
    """Return an answer to a prompt, drafted or plain."""
    return client.generate(
        [ChatMessage("user", prompt)],
        max_tokens=ANSWER_TOKENS,
        speculation=SpeculationParams(disabled=not drafted),
    )


def _print_report(report: "DemoReport") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from blockdraft_client.cli.demo_report import table_rows, verdict

    table = Table("", "plain", "drafted", box=box.SIMPLE_HEAD)
    table.columns[1].justify = table.columns[2].justify = "right"
    for row in table_rows(report):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    console.print(verdict(report), markup=False)
