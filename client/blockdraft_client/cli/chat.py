"""`blockdraft chat`: talk to the model."""

import argparse
import contextlib
import re
import shutil
import sys
from typing import TYPE_CHECKING

from blockdraft_client.cli.generate import print_text
from blockdraft_client.cli.options import (
    EQUIVALENTS,
    add_connection_arguments,
    add_sampling_arguments,
    connect,
    stream_completion,
)
from blockdraft_client.cli.output import OK, completion_json, print_json, stats_line
from blockdraft_client.cli.wrapping import WordWrapper
from blockdraft_client.errors import BlockdraftError
from blockdraft_client.params import ChatMessage

if TYPE_CHECKING:
    from blockdraft_client.client import Client

__all__ = ["EQUIVALENTS", "add_arguments", "run"]

HELP = (
    "/reset forgets the conversation, /exit or Ctrl-D leaves, /help says so, "
    "Ctrl-C stops a completion"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft chat`."""
    parser.epilog = HELP
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument("--model", default="", metavar="NAME", help="model (default: the served)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    colors = "colour tokens: drafter green, prompt lookup blue, grammar yellow"
    parser.add_argument("--colors", action="store_true", help=colors)
    add_sampling_arguments(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Read messages and print completions until the end of the input."""
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # gives input() line editing
        print(HELP, file=sys.stderr)
    with connect(args) as client:
        # If no server responds, the user learns it before typing.
        client.model()
        session = ChatSession(client, args)
        while True:
            try:
                line = input("> " if interactive else "").strip()
            except EOFError:
                return OK
            except KeyboardInterrupt:
                # As in a shell: drops the line that was being typed.
                print(file=sys.stderr)
                continue
            if line == "/exit":
                return OK
            if line == "/reset":
                session.reset()
            elif re.fullmatch(r"/\w*", line):
                unknown = "" if line == "/help" else f"{line} is no command: "
                print(unknown + HELP, file=sys.stderr)
            elif line:
                session.answer(line)


class ChatSession:
    """A chat session: the conversation so far, and how to go on with it."""

    def __init__(self, client: "Client", args: argparse.Namespace) -> None:
        """Start with the system message, if there is one."""
        self._client = client
        self._args = args
        self.messages: list[ChatMessage] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self._args.system
        self.messages = [ChatMessage("system", system)] if system is not None else []

    def answer(self, line: str) -> None:
        """Print the completion for `line`; an interrupted one is kept as far as it came."""
        args, question = self._args, ChatMessage("user", line)
        colors = args.colors and sys.stdout.isatty() and not args.json
        # Log probabilities have the bytes of tokens.
        sampling = {"logprobs": 0} if colors else {}
        stream = stream_completion(self._client, args, [*self.messages, question], **sampling)
        try:
            with stream:
                if args.json:
                    print_json(completion_json(stream.completion()))
                else:
                    columns = shutil.get_terminal_size().columns
                    wrapper = WordWrapper(columns) if sys.stdout.isatty() else None
                    print_text(stream, wrapper, colors=colors)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
        except BlockdraftError as error:
            print(f"blockdraft: {error}", file=sys.stderr)
        if stream.text:
            self.messages += [question, ChatMessage("assistant", stream.text)]
        if stream.usage is not None and sys.stderr.isatty():
            print(stats_line(stream.usage), file=sys.stderr)
