"""The files of a corpus, read and written.

Beside `NAME.jsonl` (or `.jsonl.gz`, `.jsonl.xz`) lies `NAME.manifest.json`: the target, the
sources of the prompts and the sampling of the completions. A corpus without one can be read too;
its rows are then checked against the target when features are computed.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blockdraft_models.cache import write_at_once
from blockdraft_training.corpus.lines import LineFile, read_lines
from blockdraft_training.errors import CorpusError
from blockdraft_training.settings import without_suffixes


@dataclass(frozen=True, slots=True)
class CorpusRow:
    """One conversation turn: a prompt and the target's completion."""

    id: str  # unique within a corpus
    source: str  # where the prompt came from; rows of one source share a domain
    temperature: float  # at which the completion was sampled; 0 means greedy
    prompt: tuple[int, ...]  # token ids up to where the completion starts, chat template included
    # Token ids of the completion; ends in an end-of-sequence id unless it was cut.
    response: tuple[int, ...]
    seed: int | None = None  # of the sampling, if it was recorded

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and completion."""
        return self.prompt + self.response

    def to_json(self) -> str:
        """Return the row as one line, without the newline."""
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None})

    @classmethod
    def from_json(cls, line: str | bytes) -> "CorpusRow":
        """Parse one line; a ValueError says why it is no such row."""
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        seed = fields.get("seed")
        if seed is not None and type(seed) is not int:
            raise ValueError("seed is no whole number")
        try:
            return cls(
                id=str(fields["id"]),
                source=str(fields["source"]),
                temperature=float(fields["temperature"]),
                prompt=_token_ids(fields["prompt"]),
                response=_token_ids(fields["response"]),
                seed=seed,
            )
        except KeyError as error:
            raise ValueError(f"field {error} is missing") from error
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """The description of a corpus."""

    target_name: str
    target_fingerprint: str
    vocab_size: int  # of the target; every id is below it
    prompts: tuple[dict[str, Any], ...]  # one `{source, licence, rows}` for each source of prompts
    sampling: dict[str, Any]  # temperatures, shares, longest completion and seed
    rows: int  # number of rows
    response_tokens: int  # tokens of all completions


def manifest_path(corpus: Path) -> Path:
    """Return the path of a corpus' manifest."""
    return corpus.with_name(f"{without_suffixes(corpus.name)}.manifest.json")


def read_manifest(corpus: Path) -> CorpusManifest | None:
    """Return a corpus' manifest, or None if it has none."""
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
    write_at_once(manifest_path(corpus), text.encode())


def read_corpus(paths: Sequence[Path], *, vocab_size: int, fingerprint: str) -> list[CorpusRow]:
    """Read corpora of one target; of rows with equal tokens only the first is kept."""
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
    """Yield the rows of one file, in order."""
    return read_lines(path, CorpusRow.from_json)


class CorpusWriter(AbstractContextManager["CorpusWriter"]):
    """Appends complete rows to a corpus, which may have some already; a context manager."""

    def __init__(
        self, path: Path, manifest: CorpusManifest, licence: Callable[[str], str | None]
    ) -> None:
        """Start a corpus, or go on with one of the same target and sampling.

        `manifest` needs no counts, which are made here. `licence` returns the licence of a source's
        prompts; where it returns None, the one on disk stays.
        """
        earlier = read_manifest(path)
        if earlier is None and path.exists() and path.stat().st_size:
            raise CorpusError(f"{path} exists and has no manifest {manifest_path(path).name}")
        if earlier is not None:
            _check_same(path, earlier, manifest)
        self._path, self._manifest, self._licence = path, manifest, licence
        self._licences = {
            entry["source"]: entry["licence"] for entry in (earlier.prompts if earlier else ())
        }
        self.rows: dict[str, CorpusRow] = {}
        self.response_tokens = 0
        self._rows_by_source: Counter[str] = Counter()
        self._file = LineFile(path)
        try:
            for row in read_rows(path):
                self._count(row)
            self._write_manifest()
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Close the corpus; its counts are brought up to date unless something went wrong."""
        try:
            if kind is None:
                self._write_manifest()
        finally:
            self._file.close()

    def append(self, row: CorpusRow) -> None:
        """Append one row; where it cannot be written, the rows before it stay."""
        self._file.append(row.to_json())
        self._count(row)

    def _count(self, row: CorpusRow) -> None:
        self.rows[row.id] = row
        self.response_tokens += len(row.response)
        self._rows_by_source[row.source] += 1

    def _write_manifest(self) -> None:
        prompts: list[dict[str, Any]] = []
        for source, rows in sorted(self._rows_by_source.items()):
            licence = self._licence(source) or self._licences.get(source)
            prompts.append({"source": source, "licence": licence, "rows": rows})
        manifest = replace(
            self._manifest,
            prompts=tuple(prompts),
            rows=len(self.rows),
            response_tokens=self.response_tokens,
        )
        write_manifest(self._path, manifest)


def _check_same(path: Path, earlier: CorpusManifest, now: CorpusManifest) -> None:
    """Refuse to mix rows that were made differently; say where they differ."""
    before = {"target": earlier.target_fingerprint, **earlier.sampling}
    after = {"target": now.target_fingerprint, **now.sampling}
    differences = [
        f"{name} {before.get(name)!r}, not {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    if differences:
        raise CorpusError(
            f"{path} was begun with {'; '.join(differences)}: go on with the same settings, or"
            " choose another output"
        )


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(t) is int for t in value):
        raise ValueError("prompt and response must be non-empty lists of token ids")
    return tuple(value)
