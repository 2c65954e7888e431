"""Prompt files, the choice among their prompts, and test sets kept out of training.

A prompt file has one JSON object a line: `id`, and `turns`, the user's messages in order. Messages
after the first are answered in conversations of several turns (`conversations`).
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockdraft_training.corpus.lines import read_lines
from blockdraft_training.errors import CorpusError
from blockdraft_training.settings import PromptFile

# Fewer words within a longer text are a phrase, not a copy.
SHORTEST_COPY_WORDS = 8
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class CorpusPrompt:
    """The messages of a user; the id is unique among the prompts of a corpus."""

    id: str
    source: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        """The message that is answered first."""
        return self.turns[0]


def normalized(text: str) -> str:
    """Return the text without differences of case and white space, by which copies are found."""
    return " ".join(text.casefold().split())


def read_prompts(file: PromptFile) -> Iterator[CorpusPrompt]:
    """Yield the prompts of one file, in order."""
    return read_lines(file.path, lambda line: _parse(line, file.source))


def select(
    prompts: Iterable[CorpusPrompt], excluded: Container[str], dropped: Counter[str]
) -> list[CorpusPrompt]:
    """Return the first prompt with each text that is not excluded; count the others by reason."""
    selected: list[CorpusPrompt] = []
    texts: set[str] = set()
    ids: set[str] = set()
    for prompt in prompts:
        text = normalized(prompt.text)
        if prompt.text in excluded:
            dropped["excluded"] += 1
        elif text in texts:
            dropped["duplicate"] += 1
        elif prompt.id in ids:
            raise CorpusError(f"two different prompts have the id {prompt.id}")
        else:
            texts.add(text)
            ids.add(prompt.id)
            selected.append(prompt)
    return selected


class ExcludedTexts:
    """Texts that must not occur among training prompts; `texts` has them normalized.

    Copies are found up to case and white space, also with something around them: test sets often
    add an instruction to a question, which a set of plain questions does not have.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Index the texts."""
        self.texts = frozenset(normalized(text) for text in texts)
        self._containing: defaultdict[str, list[str]] = defaultdict(list)
        self._beginning: defaultdict[str, list[str]] = defaultdict(list)
        # Sorted: hashes of texts differ between processes, and nothing here should.
        for text in sorted(self.texts):
            for index, window in enumerate(_windows(text)):
                self._containing[window].append(text)
                if index == 0:
                    self._beginning[window].append(text)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.texts)

    def __contains__(self, text: object) -> bool:
        """Return whether a text is one of these, is part of one, or has one as a part."""
        plain = normalized(str(text))
        if plain in self.texts:
            return True
        windows = list(_windows(plain))
        longer = (longer for window in windows[:1] for longer in self._containing.get(window, ()))
        shorter = (short for window in windows for short in self._beginning.get(window, ()))
        return any(plain in text for text in longer) or any(text in plain for text in shorter)

    @property
    def digest(self) -> str:
        """The digest of the set of texts, in hex digits."""
        joined = "\0".join(sorted(self.texts)).encode()
        return hashlib.blake2b(joined, digest_size=_DIGEST_BYTES).hexdigest()


def read_excluded(paths: Sequence[Path]) -> ExcludedTexts:
    """Return the texts of every turn in these prompt files, none of which may be empty."""
    texts: list[str] = []
    for path in paths:
        before = len(texts)
        for prompt in read_prompts(PromptFile(path.name, path)):
            texts.extend(prompt.turns)
        if len(texts) == before:
            raise CorpusError(f"{path} excludes nothing: it has no prompts")
    return ExcludedTexts(texts)


def _windows(text: str) -> Iterator[str]:
    words = text.split(" ")
    for start in range(len(words) - SHORTEST_COPY_WORDS + 1):
        yield " ".join(words[start : start + SHORTEST_COPY_WORDS])


def _parse(line: bytes, source: str) -> CorpusPrompt:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    if not isinstance(fields.get("id"), str):
        raise ValueError("field 'id' must be a text")
    turns = fields.get("turns")
    if not isinstance(turns, list) or not turns or not all(type(t) is str for t in turns):
        raise ValueError("field 'turns' must be a non-empty list of texts")
    return CorpusPrompt(fields["id"], source, tuple(turns))
