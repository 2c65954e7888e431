"""The settings of one command: read from flags, variables and a file, and written as flags."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from blockdraft_runtime.configuration.values import Setting, build, settings_of

S = TypeVar("S")


class Configuration(Generic[S]):
    """The settings of a command, as its flags, variables and file give them."""

    def __init__(self, command: str, kind: type[S]) -> None:
        """Describe a command by its words after `blockdraft` and the dataclass of its settings."""
        self.command = command
        self.kind = kind
        self._section = command.replace(" ", ".")

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """The settings by name."""
        return settings_of(self.kind)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The environment variables that the command reads."""
        return frozenset(self.variable(name) for name in (*self._names, "config"))

    @property
    def _names(self) -> list[str]:
        return [name for setting in self.settings.values() for name in setting.names]

    def variable(self, name: str) -> str:
        """Return the environment variable of a setting."""
        return re.sub(r"[ -]", "_", f"blockdraft {self.command} {name}").upper()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add a flag for every setting, and `--config`.

        If some settings are declared as common, `--help` shows only these, each up to the first
        semicolon of its text, so as to fit one screen; `--help-all` shows everything. Settings of
        a part are a group.
        """
        parser.epilog = (
            f"Each flag may also be given as a variable, {self.variable('NAME')}, or as a "
            f"key of section [{self._section}] in the file of --config. A flag wins over a "
            "variable, a variable over the file."
        )
        brief = any(setting.declaration.common for setting in self.settings.values())
        whole: dict[str, str] = {}
        groups: dict[str, argparse._ArgumentGroup] = {}
        for setting in self.settings.values():
            text, (part, *inner) = setting.declaration.help, setting.paths[0]
            if inner and part not in groups:
                groups[part] = parser.add_argument_group(part.replace("_", " "))
            action = _add_flag(groups[part] if inner else parser, setting)
            action.help = whole[action.dest] = _help(setting, text)
            if brief:
                first = _help(setting, text.partition(";")[0])
                action.help = first if setting.declaration.common else argparse.SUPPRESS
        parser.add_argument(
            "--config", metavar="FILE", help=f"TOML file with a section [{self._section}]"
        )
        if brief:
            parser.usage = "%(prog)s [--FLAG VALUE ...]"
            parser.add_argument(
                "--help-all",
                action=_HelpAll,
                whole=whole,
                help=f"show all {len(whole)} flags, and exit",
            )

    def read(self, args: argparse.Namespace) -> S:
        """Return the settings of flags, environment and file; a bad one ends the process."""
        try:
            return self.resolve(vars(args), os.environ)
        except (OSError, ValueError) as error:
            print(f"blockdraft {self.command}: {error}", file=sys.stderr)
            raise SystemExit(2) from error

    def resolve(self, args: Mapping[str, Any], environ: Mapping[str, str]) -> S:
        """Return the settings of parsed flags, an environment and the file that these name.

        `OSError` if the file cannot be read; `ValueError` says where a bad value came from.
        """
        file = args.get("config") or environ.get(self.variable("config"))
        section = self._read_section(Path(file)) if file else {}
        values: dict[tuple[str, ...], Any] = {}
        sources: dict[str, str] = {}
        for name, setting in self.settings.items():
            flag = args.get(_destination(name))
            variables = [key for key in map(self.variable, setting.names) if key in environ]
            entries = [key for key in setting.names if key in section]
            if flag is not None:
                value = _of_flag(setting, flag)
            elif variables:
                sources[name] = variables[0]
                value = setting.from_text(environ[variables[0]], variables[0])
            elif entries:
                sources[name] = f"{entries[0]} in [{self._section}] of {file}"
                value = setting.from_file(section[entries[0]], sources[name])
            else:
                continue
            values |= dict.fromkeys(setting.paths, value)
        try:
            return build(self.kind, values)
        except ValueError as error:
            # Add the sources of the settings that the error names, unless they are flags.
            named = set(re.findall(r"--([a-z0-9-]+)", str(error)))
            origins = [f"--{name} is {source}" for name, source in sources.items() if name in named]
            raise ValueError(
                f"{error} ({', '.join(origins)})" if origins else str(error)
            ) from error

    def flags(self, settings: S) -> tuple[str, ...]:
        """Return the command line of `settings`: a flag for each value that is not the default."""
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

    def _read_section(self, file: Path) -> dict[str, Any]:
        # Imported here: few processes are started with a file.
        import tomllib

        try:
            table: Any = tomllib.loads(file.read_text("utf-8"))
        except OSError as error:
            raise OSError(f"{file} of --config cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{file} of --config is no TOML: {error}") from error
        for word in self._section.split("."):
            names = list(table)
            table = table.get(word)
            if not isinstance(table, dict):
                near = _nearest(word, names)
                raise ValueError(f"{file} has no section [{self._section}]{near}")
        for key in table:
            if key not in self._names:
                near = _nearest(key, self._names)
                raise ValueError(f"{file}: [{self._section}] has no setting {key}{near}")
        return dict(table)


class _HelpAll(argparse.Action):
    """Prints the help of all flags, and ends the process."""

    def __init__(
        self, option_strings: list[str], dest: str, whole: dict[str, str], help: str
    ) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)
        self._whole = whole

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action in parser._actions:
            action.help = self._whole.get(action.dest, action.help)
        parser.print_help()
        parser.exit()


def _add_flag(parser: argparse._ActionsContainer, setting: Setting) -> argparse.Action:
    options: dict[str, Any] = {"dest": _destination(setting.name)}
    if setting.kind is bool:
        negated = setting.name.startswith("no-")
        options["action"] = "store_true" if negated else argparse.BooleanOptionalAction
    else:
        options["metavar"] = setting.metavar
        if setting.many and setting.declaration.separator is None:
            options |= {"nargs": "+", "action": "extend"}
    flags = [f"--{name}" for name in setting.names]
    return parser.add_argument(*flags, default=None, **options)


def _help(setting: Setting, text: str) -> str:
    default = _described_default(setting)
    text = f"{text} (default: {default})" if default else text
    if setting.default is MISSING:
        text += " (required)"
    return text.replace("%", "%%")


def _described_default(setting: Setting) -> str | None:
    """Return the default of a setting as text; None if there is none to show."""
    default = setting.default
    if default is MISSING or default is None or isinstance(default, bool):
        return None
    return f"{default:g}" if isinstance(default, float) else " ".join(setting.to_texts(default))


def _destination(name: str) -> str:
    return name.replace("-", "_")


def _of_flag(setting: Setting, flag: str | list[str] | bool) -> Any:
    if isinstance(flag, bool):
        return flag
    source = f"--{setting.name}"
    if isinstance(flag, list):
        return setting.from_texts(flag, source)
    return setting.from_text(flag, source)


def _value(settings: Any, setting: Setting) -> Any:
    value = settings
    for name in setting.paths[0]:
        # Every setting of a group that is None is unset.
        value = None if value is None else getattr(value, name)
    return value


def _flags(setting: Setting, value: Any) -> list[str]:
    if value == setting.default:
        return []
    if setting.kind is bool:
        return [f"--{setting.name}" if value else f"--no-{setting.name}"]
    return [f"--{setting.name}={text}" for text in setting.to_texts(value)]


def _nearest(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else ""
