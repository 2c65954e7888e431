"""Constraints on completions. No gRPC."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ParsedT = TypeVar("ParsedT", default=Any)
else:
    # Only type checkers need the default, and Python 3.11 has none.
    from typing import TypeVar

    ParsedT = TypeVar("ParsedT")

Schema = Mapping[str, Any] | str | type[Any]
"""A JSON Schema, as a mapping or as a text, or a class that has one, such as pydantic's models."""

_KINDS = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tags")


@dataclass(frozen=True, slots=True)
class FreeText:
    """Text that is not restricted, such as a model's reasoning.

    Attributes:
        end: Text that ends it, the first time it occurs.
        begin: Text that begins it; a completion that does not begin with it has no such text. Empty
            if the prompt has begun it.
    """

    end: str
    begin: str = ""


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """JSON between two texts, such as a call of a tool.

    Attributes:
        begin: The text before the JSON.
        json_schema: The schema of the JSON.
        end: The text after the JSON.
        trigger: Text that begins the part in free text; `begin` starts with it. Empty stands for
            the whole of `begin`.
    """

    begin: str
    json_schema: Schema
    end: str = ""
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class StructuralTags:
    """Text in which triggers begin restricted parts.

    Attributes:
        tags: The parts.
        required: Whether the completion consists of such parts alone, at least one, a line each.
        single: Whether there is one such part at most.
    """

    tags: Sequence[StructuralTag]
    required: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """A constraint on a completion, of exactly one of six kinds.

    Attributes:
        json_schema: JSON that is valid under this JSON Schema.
        json_object: Any JSON object.
        regex: Text that matches as a whole, in the syntax of Rust's regex crate.
        choice: One of these texts.
        grammar: A grammar in the Lark format of llguidance.
        structural_tags: Text with parts of another form in it.
        free_text: Text that may come before, whatever the kind; None if none may.
    """

    json_schema: Schema | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tags: StructuralTags | None = None
    free_text: FreeText | None = None

    def __post_init__(self) -> None:
        """Check that there is one kind."""
        kinds = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(kinds) != 1:
            raise ValueError(
                f"a constraint has one of {', '.join(_KINDS)}; got {', '.join(kinds) or 'none'}"
            )
        if isinstance(self.choice, str):
            raise TypeError(f"choice is a list of texts, got the text {self.choice!r}")

    @property
    def kind(self) -> str:
        """Name of the one attribute that says the kind."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))


ResponseFormat = type[ParsedT] | Mapping[str, Any] | str | OutputConstraint
"""A JSON Schema, or a class that has one and `model_validate_json`, or any constraint."""


def schema_text(schema: Schema) -> str:
    """Return a JSON Schema as a text; `TypeError` if it is none."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, Mapping):
        return json.dumps(dict(schema))
    if not hasattr(schema, "model_json_schema"):
        raise TypeError(
            "a JSON Schema is a mapping, a text, or a class with model_json_schema, "
            f"such as a model of pydantic; got {schema!r}"
        )
    return json.dumps(schema.model_json_schema())
