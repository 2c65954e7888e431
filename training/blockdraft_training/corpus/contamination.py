"""Keeping test sets out of what is trained on.

Copies are found up to case and white space, also with something around them: test sets often add
an instruction to a question, which a set of plain questions does not have.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from blockdraft_training.corpus.prompts import PromptFile, normalized, read_prompts
from blockdraft_training.errors import CorpusError

# Fewer words within a longer text are a phrase, not a copy.
SHORTEST_COPY_WORDS = 8
_DIGEST_BYTES = 8


class ExcludedTexts:
    """Texts that must not occur among training prompts.

    Attributes:
        texts: Normalized.
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
        """Return how many there are."""
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
        """What tells one set of texts from another, in hex digits."""
        joined = "\0".join(sorted(self.texts)).encode()
        return hashlib.blake2b(joined, digest_size=_DIGEST_BYTES).hexdigest()


def read_excluded(paths: Sequence[Path]) -> ExcludedTexts:
    """Return every turn in these prompt files.

    Raises:
        CorpusError: If a file cannot be read, has a damaged line or no prompts.
    """
    texts: list[str] = []
    for path in paths:
        before = len(texts)
        for prompt in read_prompts(PromptFile.parse(str(path))):
            texts.extend(prompt.turns)
        if len(texts) == before:
            raise CorpusError(f"{path} excludes nothing: it has no prompts")
    return ExcludedTexts(texts)


def _windows(text: str) -> Iterator[str]:
    words = text.split(" ")
    for start in range(len(words) - SHORTEST_COPY_WORDS + 1):
        yield " ".join(words[start : start + SHORTEST_COPY_WORDS])
