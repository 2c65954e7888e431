"""What a field of a settings dataclass says of itself, and the settings a dataclass has."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field
from typing import Any, TypeVar

FieldPath = tuple[str, ...]
"""Names of the fields that lead from the outermost dataclass to a value."""

T = TypeVar("T")
_KEY = "blockdraft"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `setting` was told; see there."""

    help: str
    flag: str | None = None
    metavar: str | None = None
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    separator: str | None = None
    distinct: bool = False
    parse: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """What `group` was told; see there."""

    title: str | None
    without: frozenset[str]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a command.

    Attributes:
        name: Its flag without the dashes, which is also its key in a file.
        paths: Where its value goes; several if parts of the settings share it.
        kind: Type of the value, without None; of one item if it is a list.
        many: Whether it is a list.
        optional: Whether it may be None.
        default: Value where nothing is said; MISSING if something must be.
        said: What the declaration says besides.
        title: For whom it is, if the groups it is in say so.
    """

    name: str
    paths: tuple[FieldPath, ...]
    kind: Any
    many: bool
    optional: bool
    default: Any
    said: Declaration
    title: str = ""


def setting(
    default: T,
    help: str,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    separator: str | None = None,
    distinct: bool = False,
    parse: Callable[[str], Any] | None = None,
) -> T:
    """Declare a field that can be set from outside.

    Args:
        default: Value where nothing is said.
        help: What it means, in a few words that need no full stop.
        flag: Name of the flag without dashes; None takes the field's name, with hyphens.
        metavar: What stands for the value in `--help`; None takes a word for its type.
        minimum: Least value, itself allowed.
        above: Least value, itself not allowed.
        maximum: Largest value, itself allowed.
        separator: Lets a list be one text with this between its items.
        distinct: Whether a list must not have an item twice.
        parse: Makes a value of a text where the type alone does not say how.
    """
    said = Declaration(help, flag, metavar, minimum, above, maximum, separator, distinct, parse)
    declared: T = field(default=default, metadata={_KEY: said})
    return declared


def required(help: str, **more: Any) -> Any:
    """Declare a field that must be set from outside; for `more` see `setting`."""
    return field(metadata={_KEY: Declaration(help, **more)})


def group(factory: Callable[[], T], *, title: str | None = None, without: Sequence[str] = ()) -> T:
    """Declare a field that holds further settings, with defaults of its own.

    Args:
        factory: Makes the default.
        title: Whose settings these are, for headings.
        without: Names of settings that cannot be set here, because something else decides them.
    """
    declared: T = field(default_factory=factory, metadata={_KEY: Group(title, frozenset(without))})
    return declared


def optional_group() -> Any:
    """Declare a group that is None unless one of its settings is given."""
    return field(default=None, metadata={_KEY: Group(None, frozenset())})


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a dataclass and of the groups in it, by name, in their order.

    Raises:
        TypeError: If two fields of one name differ in type or default, so that no value suits both.
    """
    found: dict[str, Setting] = {}
    for new in _walk(kind, {}, (), ""):
        old = found.setdefault(new.name, new)
        if old is new:
            continue
        if (old.kind, old.many, old.default) != (new.kind, new.many, new.default):
            raise TypeError(f"--{new.name} means two things: {old} and {new}")
        titles = f"{old.title} and {new.title}".replace(" and ", ", ", old.title.count(" and "))
        found[new.name] = dataclasses.replace(old, paths=old.paths + new.paths, title=titles)
    return found


def build(kind: type[T], values: Mapping[FieldPath, Any]) -> T:
    """Return settings with `values` and the defaults of all else.

    A group that is None by default becomes one as soon as one of its values is there.

    Raises:
        ValueError: If required values are missing, or values contradict each other.
    """
    return _make(kind, None, values, ())


def check(settings: Any) -> None:
    """Check that numbers are in their ranges and choices are among theirs; for `__post_init__`.

    Raises:
        ValueError: Naming the field.
    """
    hints = typing.get_type_hints(type(settings))
    for one in dataclasses.fields(settings):
        said = one.metadata.get(_KEY)
        if isinstance(said, Declaration):
            value = getattr(settings, one.name)
            check_range(said, value, one.name)
            check_choice(choices_of(hints[one.name]), value, one.name)


def choices_of(kind: Any) -> tuple[Any, ...]:
    """Return the values that a type allows one by one; none if it is no `Literal`."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def check_choice(allowed: Sequence[Any], value: Any, source: str) -> None:
    """Check that a value is one of those allowed, if only some are.

    Raises:
        ValueError: Naming the source.
    """
    if allowed and value not in allowed:
        words = " or ".join([", ".join(map(str, allowed[:-1])), str(allowed[-1])])
        raise ValueError(f"{source} must be {words}, got {value!r}")


def check_range(said: Declaration, value: Any, source: str) -> None:
    """Check that a number is in its range; anything else is.

    Raises:
        ValueError: Naming the source.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    below = said.minimum is not None and not value >= said.minimum
    below |= said.above is not None and not value > said.above
    if not below and (said.maximum is None or value <= said.maximum):
        return
    limits = (("at least", said.minimum), ("above", said.above), ("at most", said.maximum))
    words = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
    raise ValueError(f"{source} must be {words}, got {value:g}")


def _walk(
    kind: type, defaults: Mapping[str, Any], path: FieldPath, title: str
) -> Iterator[Setting]:
    hints = typing.get_type_hints(kind)
    for one in dataclasses.fields(kind):
        default = defaults[one.name] if one.name in defaults else _default(one)
        said = one.metadata.get(_KEY)
        inner, optional = _without_none(hints[one.name])
        here = (*path, one.name)
        if isinstance(said, Declaration):
            many = typing.get_origin(inner) is tuple
            yield Setting(
                name=said.flag or one.name.replace("_", "-"),
                paths=(here,),
                kind=typing.get_args(inner)[0] if many else inner,
                many=many,
                optional=optional,
                default=default,
                said=said,
                title=title,
            )
        elif isinstance(said, Group):
            # What a group that is there must have is unset as long as the group is not.
            unset = dict.fromkeys(each.name for each in dataclasses.fields(inner))
            known = unset if default is None else _values(default)
            for found in _walk(inner, known, here, said.title or title):
                if found.name not in said.without:
                    yield found


def _make(kind: type[T], base: Any, values: Mapping[FieldPath, Any], path: FieldPath) -> T:
    hints = typing.get_type_hints(kind)
    given: dict[str, Any] = {}
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]  # a dataclass, by contract
        here = (*path, one.name)
        if here in values:
            given[one.name] = values[here]
        elif any(found[: len(here)] == here for found in values):
            inner, _ = _without_none(hints[one.name])
            default = _default(one) if base is None else getattr(base, one.name)
            given[one.name] = _make(inner, default, values, here)
    if base is not None:
        return typing.cast(T, dataclasses.replace(base, **given))
    needed = [one for one in settings_of(kind).values() if one.default is MISSING]
    missing = [one for one in needed if one.paths[0][0] not in given]
    if missing and path:
        raise ValueError(f"{_and(needed)} need each other")
    if missing:
        raise ValueError(f"{_and(missing)} must be given")
    return kind(**given)


def _and(settings: Sequence[Setting]) -> str:
    *first, last = (f"--{one.name}" for one in settings)
    return f"{', '.join(first)} and {last}" if first else last


def _default(one: "Field[Any]") -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _values(settings: Any) -> dict[str, Any]:
    return {one.name: getattr(settings, one.name) for one in dataclasses.fields(settings)}


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was part of it."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return typing.Union[tuple(kinds)], True  # noqa: UP007 -- made of a list
