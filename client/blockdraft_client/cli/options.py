"""Flags that several commands share."""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from blockdraft_client.cli.output import UsageError
from blockdraft_client.constraints import OutputConstraint
from blockdraft_client.params import (
    DEFAULT_ADDRESS,
    Priority,
    Prompt,
    SamplingParams,
    SamplingShortcuts,
    SpeculationParams,
    TLSConfig,
)

if TYPE_CHECKING:
    from blockdraft_client.client import Client
    from blockdraft_client.stream import Stream


# Flags of the commands of vLLM and llama.cpp that ask a model.
EQUIVALENTS = {
    **dict.fromkeys(("--url", "--base-url", "--host", "--port"), "--address HOST, of the gRPC API"),
    **dict.fromkeys(("-n", "--n-predict", "--predict"), "--max-tokens {}"),
    **dict.fromkeys(("-m", "--model-name"), "--model {}"),
    **dict.fromkeys(("-sys", "--system-prompt"), "--system {}"),
    **dict.fromkeys(("-p", "--prompt", "-q", "--quick"), "write `blockdraft generate {}`"),
    "--temp": "--temperature {}",
}


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how to reach the server."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="the server, host, host:port or unix:/path "
        f"(default: $BLOCKDRAFT_ADDRESS, or else {DEFAULT_ADDRESS})",
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="API key (default: $BLOCKDRAFT_API_KEY, which ps hides)"
    )
    group.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help="encrypt (default: with an API key to another machine, or with a CA certificate)",
    )
    group.add_argument(
        "--ca-cert",
        type=Path,
        metavar="FILE",
        help="PEM certificates to trust (default: $BLOCKDRAFT_CA_CERT, or else the system's)",
    )
    group.add_argument("--client-cert", type=Path, metavar="FILE", help="PEM client certificate")
    group.add_argument("--client-key", type=Path, metavar="FILE", help="PEM key of --client-cert")
    group.add_argument("--server-name", metavar="NAME", help="name the certificate must have")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="deadline of each call")


def connect(args: argparse.Namespace) -> "Client":
    """Return the client that the connection flags ask for.

    `UsageError` if they contradict each other, or a file cannot be read.
    """
    from blockdraft_client.client import Client

    try:
        return Client(args.address, api_key=args.api_key, tls=tls_from(args), timeout=args.timeout)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def tls_from(args: argparse.Namespace) -> bool | TLSConfig | None:
    """Return the client's `tls` argument by the credential flags.

    `UsageError` if they contradict each other, or a file cannot be read.
    """
    files = (args.ca_cert, args.client_cert, args.client_key, args.server_name)
    tls: bool | None = args.tls
    if not any(files):
        return tls
    if tls is False:
        raise UsageError("--no-tls contradicts the certificate flags")
    try:
        return TLSConfig.from_files(*files)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of `SamplingParams` and `SpeculationParams` as flags."""
    group = parser.add_argument_group("generation", "The server chooses what is left out.")
    numbers = {
        option.name: (get_args(option.type)[0], option.metadata["help"])
        for option in dataclasses.fields(SamplingParams)
        if option.metadata
    }
    numbers["max_draft_tokens"] = int, "maximum tokens to draft per step"
    for name, (kind, text) in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar="N" if kind is int else "X", help=text)
    repeatable: tuple[tuple[str, str, Callable[[str], Any], str, str], ...] = (
        ("--stop", "stop", str, "TEXT", "text that ends the completion"),
        ("--stop-token-id", "stop_token_ids", int, "ID", "token that ends the completion"),
        ("--logit-bias", "logit_bias", _bias, "ID=BIAS", "number to add to a token's logit"),
        ("--allowed-token-id", "allowed_token_ids", int, "ID", "generate only such tokens"),
        ("--bad-word", "bad_words", str, "TEXT", "text not to generate"),
    )
    for flag, dest, parse, metavar, text in repeatable:
        group.add_argument(
            flag,
            action="append",
            dest=dest,
            type=parse,
            metavar=metavar,
            help=f"{text}; repeatable",
        )
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="generate JSON of this JSON Schema"
    )
    form.add_argument(
        "--json-object", action="store_const", const=True, help="generate a JSON object"
    )
    form.add_argument("--regex", help="generate text that matches this regular expression")
    form.add_argument(
        "--choice", action="append", metavar="TEXT", help="generate one of such texts; repeatable"
    )
    form.add_argument(
        "--grammar", type=Path, metavar="FILE", help="generate text of this Lark grammar"
    )
    group.add_argument(
        "--template-argument",
        action="append",
        type=_argument,
        metavar="NAME=JSON",
        help="variable of the chat template, such as enable_thinking=false; repeatable",
    )
    for flag, text in (
        ("--ignore-eos", "go on past the model's own end of text"),
        ("--no-draft", "decode one token at a time"),
        ("--no-prompt-lookup", "turn off prompt lookup, which drafts by matching n-grams"),
        ("--no-learn", "keep prompt and completion out of the drafter's training samples"),
    ):
        group.add_argument(flag, action="store_const", const=True, help=text)
    group.add_argument(
        "--priority",
        choices=get_args(Priority),
        help="background gives way to all other requests (default: normal)",
    )


def given_sampling(args: argparse.Namespace) -> SamplingShortcuts:
    """Return the sampling flags that were given, by field name.

    `UsageError` if a file cannot be read.
    """
    flags = (name for name in SamplingParams.__slots__ if name != "constraint")
    values = {name: getattr(args, name) for name in flags} | {"constraint": _constraint(args)}
    if args.logit_bias is not None:
        values["logit_bias"] = dict(args.logit_bias)
    options = {name: value for name, value in values.items() if value is not None}
    return cast(SamplingShortcuts, options)


def _constraint(args: argparse.Namespace) -> OutputConstraint | None:
    values = (args.json_schema, args.json_object, args.regex, args.choice, args.grammar)
    if all(value is None for value in values):
        return None
    return OutputConstraint(
        json_schema=_text_of(args.json_schema),
        json_object=bool(args.json_object),
        regex=args.regex,
        choice=args.choice,
        grammar=_text_of(args.grammar),
    )


def _text_of(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME=JSON, got {text!r}") from None


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be ID=BIAS, got {text!r}") from None


def stream_completion(
    client: "Client", args: argparse.Namespace, prompt: Prompt, **sampling: Any
) -> "Stream":
    """Ask for a completion as the flags of generation and of the model say, and `sampling`.

    `UsageError` if they ask for values that would not be printed.
    """
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(args, name) is not None and not args.json:
            raise UsageError(f"--{name.replace('_', '-')} needs --json")
    speculation = SpeculationParams(
        disabled=bool(args.no_draft),
        max_draft_tokens=args.max_draft_tokens,
        prompt_lookup_disabled=bool(args.no_prompt_lookup),
        learning_disabled=bool(args.no_learn),
    )
    try:
        return client.stream(
            prompt,
            speculation=speculation,
            priority=args.priority or "normal",
            model=args.model,
            template_arguments=dict(args.template_argument or ()),
            **given_sampling(args),
            **sampling,
        )
    except ValueError as error:
        # protobuf's own check: a number does not fit its field.
        raise UsageError(str(error)) from error
