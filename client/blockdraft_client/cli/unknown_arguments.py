"""Answers to arguments that a command does not know."""

import argparse
import difflib
from collections.abc import Iterator, Mapping, Sequence


def unknown_arguments(
    unknown: Sequence[str],
    arguments: Sequence[str],
    parser: argparse.ArgumentParser,
    equivalents: Mapping[str, str],
) -> str:
    """Return a line about each of a command's arguments that `parser` left over.

    `equivalents` are what flags of other programs are here, with `{}` for their value.
    """
    own_flags = list(_flags(parser))
    flags = [argument for argument in unknown if argument.startswith("-")]
    if not flags:
        return "; ".join(f"unknown argument {word}" for word in unknown)
    # Words are left out: which of them are values of unknown flags cannot be told.
    return "\n  ".join(
        _line(flag, _value(flag, arguments), own_flags, equivalents) for flag in flags
    )


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _flags(subparser)


def _value(flag: str, arguments: Sequence[str]) -> str:
    _, is_joined, value = flag.partition("=")
    behind = arguments[arguments.index(flag) + 1 :][:1]
    return value if is_joined else "".join(text for text in behind if not text.startswith("-"))


def _line(
    argument: str, value: str, own_flags: Sequence[str], equivalents: Mapping[str, str]
) -> str:
    # vLLM takes underscores too.
    flag = argument.partition("=")[0].replace("_", "-")
    answer = equivalents.get(flag)
    if answer is None:
        near = difflib.get_close_matches(flag, own_flags, 1)
        return f"unknown argument {argument}" + (f", did you mean {near[0]}?" if near else "")
    answer = f"write {answer}" if answer.startswith("--") else answer
    return f"{argument}: {answer.format(value or 'VALUE')}"
