"""Where settings come from: flags before variables, variables before the file."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft_runtime.configuration.definition import Setting
from blockdraft_runtime.configuration.values import from_file, from_text, from_texts

Flags = Mapping[str, str | list[str] | bool | None]
"""What the command line gave for each setting: its text, its texts, or whether it is on."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value and who said so, in words for messages."""

    value: Any
    source: str


def variable(command: str, name: str) -> str:
    """Return the variable of a setting of a command."""
    return re.sub(r"[ -]", "_", f"blockdraft {command} {name}").upper()


def given_values(
    command: str,
    settings: Mapping[str, Setting],
    flags: Flags,
    environ: Mapping[str, str],
    file: Path | None,
) -> dict[str, Given]:
    """Return what was given for each setting, by name, from the first source that has it.

    Args:
        command: The command's words, such as "train dflash".
        settings: Its settings by name.
        flags: What the command line says.
        environ: Environment variables.
        file: The TOML file, if there is one.

    Raises:
        OSError: If the file cannot be read.
        ValueError: Naming the source, if a value means nothing or is out of range, or if the file
            has an unknown key or no section for this command.
    """
    section = {} if file is None else _section(file, command, settings)
    given: dict[str, Given] = {}
    for name, setting in settings.items():
        flag, key = flags.get(name), variable(command, name)
        if flag is not None:
            given[name] = Given(_of_flag(setting, flag), f"--{name}")
        elif key in environ:
            given[name] = Given(from_text(setting, environ[key], key), key)
        elif name in section:
            source = f"{name} in [{_title(command)}] of {file}"
            given[name] = Given(from_file(setting, section[name], source), source)
    return given


def _of_flag(setting: Setting, flag: str | list[str] | bool) -> Any:
    if isinstance(flag, bool):
        return flag
    source = f"--{setting.name}"
    if isinstance(flag, list):
        return from_texts(setting, flag, source)
    return from_text(setting, flag, source)


def _section(file: Path, command: str, settings: Mapping[str, Setting]) -> dict[str, Any]:
    # Imported here: few are started with a file.
    import tomllib

    try:
        table: Any = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise OSError(f"{file} of --config cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file} of --config is no TOML: {error}") from error
    title = _title(command)
    for word in title.split("."):
        names = list(table)
        table = table.get(word)
        if not isinstance(table, dict):
            raise ValueError(f"{file} has no section [{title}]{_nearest(word, names)}")
    for key in table:
        if key not in settings:
            raise ValueError(
                f"{file}: [{title}] has no setting {key}{_nearest(key, list(settings))}"
            )
    return dict(table)


def _title(command: str) -> str:
    return command.replace(" ", ".")


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
