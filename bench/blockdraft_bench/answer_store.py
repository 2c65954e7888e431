"""Answers on disk, one JSON object a line, so that an interrupted measurement goes on."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft_bench.answers import Answer
from blockdraft_bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """Which answer.

    Attributes:
        dataset: Name of the dataset.
        sample_id: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        temperature: Of the target.
        drafted: Whether with drafting.
    """

    dataset: str
    sample_id: str
    prompt: str
    temperature: float
    drafted: bool


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that stand for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class AnswerStore:
    """The answers so far under one choice of settings; each key has at most one."""

    def __init__(self, settings: str, path: Path | None = None) -> None:
        """Read what is there.

        Args:
            settings: Digest of all that decides an answer beside its key. Lines with another one
                are left alone.
            path: The file, made when the first answer comes; None keeps answers in memory only.

        Raises:
            BenchError: If the file holds something else.
        """
        self._settings = settings
        self._path = path
        self._answers: dict[AnswerKey, Answer] = {}
        if path is not None and path.exists():
            self._read(path)

    def __iter__(self) -> Iterator[Answer]:
        """Return the answers, in the order they were added."""
        return iter(self._answers.values())

    def get(self, key: AnswerKey) -> Answer | None:
        """Return an answer, or None if it is still to be decoded."""
        return self._answers.get(key)

    def add(self, key: AnswerKey, answer: Answer) -> None:
        """Keep an answer; a second one for the same key is dropped."""
        if key in self._answers:
            return
        self._answers[key] = answer
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._fields(key, answer)) + "\n")

    def _fields(self, key: AnswerKey, answer: Answer) -> dict[str, Any]:
        return {
            "settings": self._settings,
            "dataset": key.dataset,
            "sample": key.sample_id,
            "prompt": key.prompt,
            "temperature": key.temperature,
            "drafted": key.drafted,
            "token_ids": answer.token_ids,
            "steps": answer.steps,
            "stopped": answer.stopped,
        }

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                fields = json.loads(line)
                if fields["settings"] != self._settings:
                    continue
                key = AnswerKey(
                    fields["dataset"],
                    fields["sample"],
                    fields["prompt"],
                    fields["temperature"],
                    fields["drafted"],
                )
                steps = tuple((drafted, accepted) for drafted, accepted in fields["steps"])
                answer = Answer(tuple(fields["token_ids"]), steps, fields["stopped"])
            except (ValueError, TypeError, KeyError) as error:
                raise BenchError(f"{path}, line {number} is no answer: {error}") from error
            self._answers.setdefault(key, answer)
        if whole < len(content):
            # The last line was being written when the run was interrupted.
            with path.open("r+b") as file:
                file.truncate(whole)
