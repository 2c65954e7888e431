"""Frozen dataclasses read from JSON objects, with every value checked against its annotation."""

import types
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from blockdraft_bench.common.statistics import Estimate

Row = TypeVar("Row")


def read_row(kind: type[Row], fields: Any, **given: Any) -> Row:
    """Return a dataclass of the equally named values of a JSON object.

    An `Estimate` NAME comes from `NAME` and `NAME_ci95`. Values the class does not have are left
    alone.

    Args:
        kind: The dataclass, of texts, truths, numbers, optional ones, tuples of them, estimates.
        fields: The object.
        **given: Values that come from elsewhere; they are checked like the others.

    Raises:
        KeyError: If a value is missing.
        TypeError: If one is of another type.
    """
    if not isinstance(fields, Mapping):
        raise TypeError(f"{fields!r} is no JSON object")
    values = {
        name: _value(hint, name, given if name in given else fields)
        for name, hint in get_type_hints(kind).items()
    }
    return kind(**values)


def _value(hint: Any, name: str, fields: Mapping[str, Any]) -> Any:
    if hint is Estimate:
        interval = fields[f"{name}_ci95"]
        edges = None if interval is None else _checked(tuple[float, ...], interval, f"{name}_ci95")
        if edges is not None and len(edges) != 2:
            raise TypeError(f"{name}_ci95 is {interval!r}")
        return Estimate(_checked(float | None, fields[name], name), edges)
    return _checked(hint, fields[name], name)


def _checked(hint: Any, value: Any, name: str) -> Any:
    """Return a value if it is of the annotated type; lists become tuples."""
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_checked(get_args(hint)[0], item, name) for item in value)
    elif isinstance(hint, types.UnionType):
        optional, _ = get_args(hint)
        return None if value is None else _checked(optional, value, name)
    elif isinstance(value, bool):
        if hint is bool:
            return value
    elif hint is float and isinstance(value, int | float):
        return float(value)
    elif isinstance(value, hint):
        return value
    raise TypeError(f"{name} is {value!r}")
