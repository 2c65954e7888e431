"""A corpus being written: complete rows only, one set of settings, resumable."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockdraft_training.corpus.line_file import LineFile
from blockdraft_training.corpus.rows import (
    CorpusManifest,
    CorpusRow,
    manifest_path,
    read_manifest,
    read_rows,
    write_manifest,
)
from blockdraft_training.errors import CorpusError


class CorpusWriter:
    """Appends rows to a corpus, which may have some already; a context manager.

    Attributes:
        rows: Those that are there, by id.
        response_tokens: Tokens of all answers that are there.
    """

    def __init__(
        self, path: Path, manifest: CorpusManifest, licence: Callable[[str], str | None]
    ) -> None:
        """Start a corpus, or go on with one.

        Args:
            path: The .jsonl file.
            manifest: Target and sampling; its counts are ignored.
            licence: Says under which licence the prompts of a source are.

        Raises:
            CorpusError: If there is a corpus made otherwise, or it is damaged or being written.
            OSError: If files cannot be opened or written.
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

    def __enter__(self) -> "CorpusWriter":
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Close the corpus; its counts are brought up to date unless something went wrong."""
        try:
            if kind is None:
                self._write_manifest()
        finally:
            self._file.close()

    def append(self, row: CorpusRow) -> None:
        """Append one row.

        Raises:
            CorpusError: If it cannot be written; the rows before it stay.
        """
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
    """Refuse to mix rows that were made differently.

    Raises:
        CorpusError: If target or sampling differ; says where.
    """
    differences = [
        f"{name} {before!r}, not {after!r}"
        for name, before, after in (
            ("target", earlier.target_fingerprint, now.target_fingerprint),
            *(
                (name, earlier.sampling.get(name), now.sampling.get(name))
                for name in sorted(earlier.sampling.keys() | now.sampling.keys())
            ),
        )
        if before != after
    ]
    if differences:
        raise CorpusError(
            f"{path} was begun with {'; '.join(differences)}: go on with the same settings, or"
            " choose another output"
        )
