"""Prompt files, and which of their prompts are answered.

A prompt file has one JSON object a line: `id`, and `turns`, the user's messages in order. Those
after the first are answered in conversations of several turns (`conversations`).
"""

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blockdraft_training.corpus.line_file import read_lines
from blockdraft_training.errors import CorpusError

_SUFFIXES = (".gz", ".jsonl")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user asks.

    Attributes:
        id: Unique among the prompts of a corpus.
        source: Where it comes from.
        turns: The user's messages.
    """

    id: str
    source: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        """The message that is answered first."""
        return self.turns[0]


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file of prompts.

    Attributes:
        source: Name of the source; rows of one source share a domain.
        path: A .jsonl or .jsonl.gz file.
    """

    source: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> "PromptFile":
        """Read `NAME=FILE`, or `FILE`, which is called like the file."""
        name, separator, path = text.partition("=")
        if separator and not Path(text).exists():
            return cls(name, Path(path))
        stem = Path(text).name
        for suffix in _SUFFIXES:
            stem = stem.removesuffix(suffix)
        return cls(stem, Path(text))

    def __str__(self) -> str:
        """Return what `parse` reads."""
        return f"{self.source}={self.path}"


@dataclass(slots=True)
class Selection:
    """Prompts that may be answered, and how many of the others there were.

    Attributes:
        prompts: In order, each text once.
        excluded: Dropped because they must not occur.
        duplicates: Dropped because an earlier prompt has the same text.
    """

    prompts: list[Prompt] = field(default_factory=list)
    excluded: int = 0
    duplicates: int = 0


def normalized(text: str) -> str:
    """Return the text without differences of case and white space, by which copies are found."""
    return " ".join(text.casefold().split())


def read_prompts(file: PromptFile) -> Iterator[Prompt]:
    """Yield the prompts of one file, in order.

    Raises:
        CorpusError: If the file cannot be read, or a line is damaged; names the line.
    """
    return read_lines(file.path, lambda line: _parse(line, file.source))


def select(prompts: Iterable[Prompt], excluded: Container[str]) -> Selection:
    """Keep each text once, and none that is excluded.

    Args:
        prompts: All prompts; of equal texts the first is kept.
        excluded: Texts that must not occur.

    Raises:
        CorpusError: If two different prompts have the same id.
    """
    selection = Selection()
    seen: set[str] = set()
    ids: set[str] = set()
    for prompt in prompts:
        text = normalized(prompt.text)
        if prompt.text in excluded:
            selection.excluded += 1
        elif text in seen:
            selection.duplicates += 1
        elif prompt.id in ids:
            raise CorpusError(f"two different prompts have the id {prompt.id}")
        else:
            seen.add(text)
            ids.add(prompt.id)
            selection.prompts.append(prompt)
    return selection


def _parse(line: bytes, source: str) -> Prompt:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    if not isinstance(fields.get("id"), str):
        raise ValueError("field 'id' must be a text")
    turns = fields.get("turns")
    if not isinstance(turns, list) or not turns or not all(type(t) is str for t in turns):
        raise ValueError("field 'turns' must be a non-empty list of texts")
    return Prompt(fields["id"], source, tuple(turns))
