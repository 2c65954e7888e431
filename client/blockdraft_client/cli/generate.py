"""`blockdraft generate`: generate one completion."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from blockdraft_client.cli.options import (
    EQUIVALENTS,
    add_connection_arguments,
    add_sampling_arguments,
    connect,
    given_sampling,
    stream_completion,
)
from blockdraft_client.cli.output import OK, UsageError, completion_json, print_json, stats_line
from blockdraft_client.cli.wrapping import WordWrapper
from blockdraft_client.params import ChatMessage, Prompt

if TYPE_CHECKING:
    from blockdraft_client.client import Client
    from blockdraft_client.stream import Stream
    from blockdraft_protos.v1.inference_pb2 import StreamGenerateRequest

__all__ = ["EQUIVALENTS", "add_arguments", "print_text", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft generate`."""
    parser.add_argument("prompt", nargs="?", help="what to continue; - reads it from stdin")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--chat",
        action="store_true",
        help="send the prompt as a message of a user, in the model's chat template",
    )
    form.add_argument("--raw", action="store_true", help="continue the prompt as it is (default)")
    parser.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    parser.add_argument(
        "--request",
        metavar="FILE",
        help="send this StreamGenerateRequest, protobuf JSON, instead; - reads it from stdin",
    )
    parser.add_argument("--model", default="", metavar="NAME", help="model (default: the served)")
    parser.add_argument(
        "--stats",
        action=argparse.BooleanOptionalAction,
        help="print speed and acceptance to stderr (default: if that is a terminal)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_sampling_arguments(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Generate one completion and print it as it comes."""
    with connect(args) as client, _open(client, args) as stream:
        if args.json:
            print_json(completion_json(stream.completion()))
            return OK
        print_text(stream)
        stats = args.stats if args.stats is not None else sys.stderr.isatty()
        if stats and stream.usage is not None:
            print(stats_line(stream.usage), file=sys.stderr)
    return OK


def print_text(
    stream: "Stream", wrapper: WordWrapper | None = None, *, colors: bool = False
) -> None:
    """Print the chunks of a completion as they come, and end the line however it ends."""
    from blockdraft_client.cli.source_colors import in_colors

    try:
        for chunk in stream:
            text = in_colors(chunk) if colors else chunk.text
            sys.stdout.write(text if wrapper is None else wrapper.push(text))
            sys.stdout.flush()
    finally:
        if wrapper is not None:
            sys.stdout.write(wrapper.finish())
        if stream.text and not stream.text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def _open(client: "Client", args: argparse.Namespace) -> "Stream":
    if args.request is not None:
        return client.stream_request(_request_from(args))
    return stream_completion(client, args, _prompt_from(args))


def _prompt_from(args: argparse.Namespace) -> Prompt:
    if args.prompt is None:
        raise UsageError("a prompt is required; - reads it from stdin")
    text = sys.stdin.read() if args.prompt == "-" else str(args.prompt)
    if args.raw and args.system is not None:
        raise UsageError("--system needs a chat template; leave out --raw")
    if not args.chat and args.system is None:
        return text
    system = [ChatMessage("system", args.system)] if args.system is not None else []
    return [*system, ChatMessage("user", text)]


def _request_from(args: argparse.Namespace) -> "StreamGenerateRequest":
    from google.protobuf import json_format

    from blockdraft_protos.v1.inference_pb2 import StreamGenerateRequest

    speculation = (args.max_draft_tokens, args.no_draft, args.no_prompt_lookup, args.no_learn)
    options = (args.prompt, args.system, args.priority, *speculation)
    conflicts = [value for value in options if value is not None]
    if conflicts or given_sampling(args) or args.chat or args.raw or args.model:
        raise UsageError("--request holds the whole request; leave out the prompt and its flags")
    try:
        text = sys.stdin.read() if args.request == "-" else Path(args.request).read_text("utf-8")
        return json_format.Parse(text, StreamGenerateRequest())
    except (OSError, UnicodeDecodeError, json_format.ParseError) as error:
        # protobuf's messages have several lines.
        raise UsageError(f"--request {args.request}: {' '.join(str(error).split())}") from error
