"""JSON Schemas of several origins, with valid and invalid values where the origin has some."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft_bench.errors import BenchUsageError

SCHEMAS = Path(__file__).parents[1] / "data" / "schemas.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Example:
    """A schema; its name is unique within its family."""

    family: str  # of schemas with one origin
    name: str
    schema: Any  # an object or a boolean
    prompt: str | None = None  # what a model may be asked, where the origin has a question
    valid: Sequence[Any] = ()  # JSON values that are valid under it
    invalid: Sequence[Any] = ()  # others that are not

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a line of the file, without empty ones."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value not in (None, ())}


def read_examples(path: Path = SCHEMAS) -> list[Example]:
    """Read a file that `tools.make_schemas` wrote, or one like it."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [Example(**json.loads(line)) for line in lines]
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
        raise BenchUsageError(f"{path} cannot be read: {error}") from error
