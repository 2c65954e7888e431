"""The settings of one command: its flags, what they say, and the flags that say a thing."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from blockdraft_runtime.configuration.definition import Setting, build, settings_of
from blockdraft_runtime.configuration.sources import Given, given_values, variable
from blockdraft_runtime.configuration.values import choices, to_texts

S = TypeVar("S")


class Configuration(Generic[S]):
    """How a command comes to its settings."""

    def __init__(self, command: str, kind: type[S]) -> None:
        """Describe a command.

        Args:
            command: Its words after `blockdraft`, such as "verifier" or "train dflash".
            kind: The dataclass of its settings.
        """
        self.command = command
        self.kind = kind

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """The settings by name."""
        return settings_of(self.kind)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The environment variables that the command reads."""
        return frozenset(variable(self.command, name) for name in (*self.settings, "config"))

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add a flag for every setting, and `--config`."""
        section = self.command.replace(" ", ".")
        parser.epilog = (
            f"Each flag may also be given as a variable, {variable(self.command, 'NAME')}, or as a "
            f"key of section [{section}] in the file of --config. A flag wins over a variable, a "
            "variable over the file."
        )
        titles: dict[str, argparse._ArgumentGroup] = {}
        for setting in self.settings.values():
            title = setting.title
            if title and title not in titles:
                titles[title] = parser.add_argument_group(f"settings of the {title}")
            _add_flag(titles.get(title, parser), setting)
        parser.add_argument(
            "--config", metavar="FILE", help=f"TOML file with a section [{section}] of settings"
        )

    def read(self, args: argparse.Namespace) -> S:
        """Return the settings that flags, environment and file give.

        Raises:
            SystemExit: If that fails, with status 2 and one line on stderr, as for a bad flag.
        """
        try:
            return self.resolve(vars(args), os.environ)
        except (OSError, ValueError) as error:
            print(f"blockdraft {self.command}: {error}", file=sys.stderr)
            raise SystemExit(2) from error

    def resolve(self, args: Mapping[str, Any], environ: Mapping[str, str]) -> S:
        """Return the settings that parsed flags, an environment and the file they name give.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If a value is bad; the message says where it came from.
        """
        flags = {name: args.get(_destination(name)) for name in self.settings}
        file = args.get("config") or environ.get(variable(self.command, "config"))
        given = given_values(
            self.command, self.settings, flags, environ, Path(file) if file else None
        )
        values = {
            path: one.value for name, one in given.items() for path in self.settings[name].paths
        }
        try:
            return build(self.kind, values)
        except ValueError as error:
            raise ValueError(f"{error}{_origins(str(error), given)}") from error

    def flags(self, settings: S) -> tuple[str, ...]:
        """Return the command line that means `settings`: a flag for all that is not the default."""
        return tuple(
            flag
            for setting in self.settings.values()
            for flag in _flags(setting, _value(settings, setting))
        )

    def main(
        self, run: Callable[[argparse.Namespace], int], argv: Sequence[str] | None = None
    ) -> int:
        """Parse `argv` (default: the process's), run the command, return the exit code."""
        parser = argparse.ArgumentParser(f"blockdraft {self.command}", allow_abbrev=False)
        self.add_arguments(parser)
        return run(parser.parse_args(argv))


def _described_default(setting: Setting) -> str | None:
    """Return the text that means the default of a setting; None if there is none."""
    default = setting.default
    if default is MISSING or default is None or isinstance(default, bool):
        return None
    return f"{default:g}" if isinstance(default, float) else " ".join(to_texts(setting, default))


def _add_flag(group: "argparse._ActionsContainer", setting: Setting) -> None:
    default = _described_default(setting)
    text = f"{setting.said.help} (default: {default})" if default else setting.said.help
    if setting.default is MISSING:
        text += " (required)"
    more: dict[str, Any] = {"help": text.replace("%", "%%"), "dest": _destination(setting.name)}
    if setting.kind is bool:
        negated = setting.name.startswith("no-")
        more["action"] = "store_true" if negated else argparse.BooleanOptionalAction
    else:
        more["metavar"] = _metavar(setting)
        if setting.many and setting.said.separator is None:
            more |= {"nargs": "+", "action": "extend"}
    group.add_argument(f"--{setting.name}", default=None, **more)


def _metavar(setting: Setting) -> str:
    if setting.said.metavar is not None:
        return setting.said.metavar
    if allowed := choices(setting):
        return "{" + ",".join(map(str, allowed)) + "}"
    return {int: "N", float: "X", Path: "PATH"}.get(setting.kind, "TEXT")


def _destination(name: str) -> str:
    return name.replace("-", "_")


def _value(settings: Any, setting: Setting) -> Any:
    value = settings
    for name in setting.paths[0]:
        # Of a group that is None, every setting is unset.
        value = None if value is None else getattr(value, name)
    return value


def _flags(setting: Setting, value: Any) -> list[str]:
    if value == setting.default:
        return []
    if setting.kind is bool:
        return [f"--{setting.name}" if value else f"--no-{setting.name}"]
    return [f"--{setting.name}={text}" for text in to_texts(setting, value)]


def _origins(message: str, given: Mapping[str, Given]) -> str:
    """Return where the settings that a message names come from, unless they are flags."""
    named = set(re.findall(r"--([a-z0-9-]+)", message))
    sources = [
        f"--{name} is {one.source}"
        for name, one in given.items()
        if name in named and one.source != f"--{name}"
    ]
    return f" ({', '.join(sources)})" if sources else ""
