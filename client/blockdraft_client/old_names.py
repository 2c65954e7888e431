"""Deprecated names of the SDK's fields, which work for one more release."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

NEW_NAMES = {
    "max_output_tokens": "max_tokens",
    "log_probs": "logprobs",
    "lookup_disabled": "prompt_lookup_disabled",
    "lookup_drafted_tokens": "prompt_lookup_drafted_tokens",
    "lookup_accepted_tokens": "prompt_lookup_accepted_tokens",
}
"""The names of fields of the SDK's dataclasses, by their deprecated names."""


def with_new_names(options: Mapping[str, Any], stacklevel: int) -> dict[str, Any]:
    """Return options under their new names, with a warning; `TypeError` if one is given twice."""
    renamed = dict(options)
    for old in NEW_NAMES.keys() & options.keys():
        if NEW_NAMES[old] in options:
            raise TypeError(f"{old} is the old name of {NEW_NAMES[old]}; give only one of them")
        renamed[_new_name(old, stacklevel + 1)] = renamed.pop(old)
    return renamed


def _new_name(old: str, stacklevel: int) -> str:
    new = NEW_NAMES[old]
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel + 1)
    return new


def takes_old_names(kind: type[T]) -> type[T]:
    """Let a dataclass be made, and read, by deprecated names of its fields too."""
    make, fields = kind.__init__, kind.__annotations__

    @functools.wraps(make)
    def init(self: T, *args: Any, **options: Any) -> None:
        make(self, *args, **with_new_names(options, stacklevel=2))

    def read(self: T, name: str) -> Any:
        if NEW_NAMES.get(name) not in fields:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        return getattr(self, _new_name(name, stacklevel=2))

    # Hidden from type checkers, which should know only the new names.
    kind.__init__ = init  # type: ignore[method-assign, assignment]
    kind.__getattr__ = read  # type: ignore[attr-defined]
    return kind
