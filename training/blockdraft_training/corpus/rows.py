"""A corpus: answers of the target to prompts, as token ids, one JSON object a line.

Beside `NAME.jsonl` (or `NAME.jsonl.gz`) lies `NAME.manifest.json`: which target answered, whose
prompts they were and how the answers were sampled. A corpus without one can be read too; its rows
are then checked against the target when features are computed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockdraft_training.corpus.line_file import read_lines
from blockdraft_training.errors import CorpusError


@dataclass(frozen=True, slots=True)
class CorpusRow:
    """One conversation turn: a prompt and the target's answer.

    Attributes:
        id: Unique within a corpus.
        source: Where the prompt came from; rows of one source share a domain.
        temperature: At which the answer was sampled; 0 means greedy.
        prompt: Token ids up to where the answer starts, chat template included.
        response: Token ids of the answer; ends in an end-of-sequence id unless it was cut.
        seed: Of the sampling, if it was recorded.
    """

    id: str
    source: str
    temperature: float
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    seed: int | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.response

    def to_json(self) -> str:
        """Return the row as one line, without the newline."""
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None})

    @classmethod
    def from_json(cls, line: str | bytes) -> "CorpusRow":
        """Parse one line.

        Raises:
            ValueError: If it is no such row.
        """
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        try:
            return cls(
                id=str(fields["id"]),
                source=str(fields["source"]),
                temperature=float(fields["temperature"]),
                prompt=_token_ids(fields["prompt"]),
                response=_token_ids(fields["response"]),
                seed=fields.get("seed"),
            )
        except KeyError as error:
            raise ValueError(f"field {error} is missing") from error
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """What a corpus is.

    Attributes:
        target_name: The target that answered.
        target_fingerprint: Its fingerprint.
        vocab_size: Of the target; every id is below it.
        prompts: One `{source, licence, rows}` for each source of prompts.
        sampling: Temperatures, shares, longest answer and seed.
        rows: Rows written.
        response_tokens: Tokens of all answers.
    """

    target_name: str
    target_fingerprint: str
    vocab_size: int
    prompts: tuple[dict[str, Any], ...]
    sampling: dict[str, Any]
    rows: int
    response_tokens: int


def manifest_path(corpus: Path) -> Path:
    """Return where the manifest of a corpus lies."""
    name = corpus.name.removesuffix(".gz").removesuffix(".jsonl")
    return corpus.with_name(f"{name}.manifest.json")


def read_manifest(corpus: Path) -> CorpusManifest | None:
    """Return a corpus' manifest, or None if it has none.

    Raises:
        CorpusError: If there is one and it cannot be understood.
    """
    path = manifest_path(corpus)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return CorpusManifest(**{**fields, "prompts": tuple(fields["prompts"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorpusError(f"{path} is no corpus manifest: {error}") from error


def write_manifest(corpus: Path, manifest: CorpusManifest) -> None:
    """Write the manifest of a corpus; an earlier one stays whole until the new one is."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"
    path = manifest_path(corpus)
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def read_corpus(paths: Sequence[Path], *, vocab_size: int, fingerprint: str) -> list[CorpusRow]:
    """Read corpora of one target; rows with equal tokens are kept once.

    Args:
        paths: Files ending in .jsonl or .jsonl.gz.
        vocab_size: Of the target.
        fingerprint: Of the target.

    Raises:
        CorpusError: If a file is missing, damaged or empty, has ids outside the vocabulary, or was
            made with another target.
    """
    rows: dict[tuple[int, ...], CorpusRow] = {}
    for path in paths:
        manifest = read_manifest(path)
        if manifest is not None and manifest.target_fingerprint != fingerprint:
            raise CorpusError(
                f"{path} was made with target {manifest.target_name}"
                f" ({manifest.target_fingerprint}), not with {fingerprint}"
            )
        before = len(rows)
        for row in read_rows(path):
            outside = next((t for t in row.token_ids if not 0 <= t < vocab_size), None)
            if outside is not None:
                raise CorpusError(
                    f"{path}: row {row.id} has token {outside}, outside the target's vocabulary"
                    f" of {vocab_size}"
                )
            rows.setdefault(row.token_ids, row)
        if len(rows) == before:
            raise CorpusError(f"{path} adds no rows")
    return list(rows.values())


def read_rows(path: Path) -> Iterator[CorpusRow]:
    """Yield the rows of one file, in order.

    Raises:
        CorpusError: If the file cannot be read, or a line is damaged; names the line.
    """
    return read_lines(path, CorpusRow.from_json)


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(t) is int for t in value):
        raise ValueError("prompt and response must be non-empty lists of token ids")
    return tuple(value)
