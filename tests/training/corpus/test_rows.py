"""The corpus format, and what is wrong with damaged ones."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from blockdraft_training.corpus.rows import (
    CorpusManifest,
    CorpusRow,
    manifest_path,
    read_corpus,
    read_manifest,
    read_rows,
    write_manifest,
)
from blockdraft_training.errors import CorpusError

FINGERPRINT = "0123456789abcdef"
ROWS = (
    CorpusRow("a", "math", 0.0, (1, 2, 3), (4, 5)),
    CorpusRow("b", "code", 0.7, (1, 9), (6,), seed=2**53 - 1),
)


def manifest(fingerprint: str = FINGERPRINT) -> CorpusManifest:
    prompts = ({"source": "math", "licence": "MIT", "rows": 1},)
    return CorpusManifest("tiny", fingerprint, 10, prompts, {"seed": 0}, 2, 3)


def lines(rows: tuple[CorpusRow, ...] = ROWS) -> bytes:
    return "".join(row.to_json() + "\n" for row in rows).encode()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(lines())
    return path


def read(*paths: Path, vocab_size: int = 10) -> list[CorpusRow]:
    return read_corpus(paths, vocab_size=vocab_size, fingerprint=FINGERPRINT)


def test_rows_survive(corpus: Path) -> None:
    assert read(corpus) == list(ROWS)
    assert ROWS[0].token_ids == (1, 2, 3, 4, 5)
    assert "seed" not in json.loads(ROWS[0].to_json())


def test_compressed_rows_are_the_same(tmp_path: Path) -> None:
    for suffix, pack in (("gz", gzip.compress), ("xz", lzma.compress)):
        path = tmp_path / f"corpus.jsonl.{suffix}"
        path.write_bytes(pack(lines()))
        assert read(path) == list(ROWS)
        assert manifest_path(path) == tmp_path / "corpus.manifest.json"


def test_manifest_survives(corpus: Path) -> None:
    assert read_manifest(corpus) is None
    write_manifest(corpus, manifest())
    assert read_manifest(corpus) == manifest()
    assert read(corpus) == list(ROWS)
    assert {path.name for path in corpus.parent.iterdir()} == {
        "corpus.jsonl",
        "corpus.manifest.json",
    }


def test_equal_tokens_are_kept_once(corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    again = CorpusRow("elsewhere", "math", 0.7, (1, 2), (3, 4, 5))
    new = CorpusRow("c", "math", 0.0, (1,), (8,))
    other.write_bytes(lines((again, new)))
    assert read(corpus, other) == [*ROWS, new]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "c", "source": "math"', "line 3: "),
        (b"[]", "line 3: not a JSON object"),
        (b"{}", "line 3: field 'id' is missing"),
        (b'{"id":"c","source":"s","temperature":null,"prompt":[1],"response":[1]}', "line 3: "),
        (b'{"id":"c","source":"s","temperature":0,"prompt":[],"response":[1]}', "non-empty lists"),
        (b'{"id":"c","source":"s","temperature":0,"prompt":[1],"response":[1.5]}', "token ids"),
        (b'{"id":"c","source":"s","temperature":0,"prompt":[1],"response":[true]}', "token ids"),
        (
            b'{"id":"c","source":"s","temperature":0,"prompt":[1],"response":[1],"seed":"x"}',
            "line 3: seed is no whole number",
        ),
        (b"\xff\xfe", "line 3: "),
        (b"[" * 100_000, "line 3: it is nested too deep"),
    ],
)
def test_damaged_line_is_named(corpus: Path, line: bytes, message: str) -> None:
    corpus.write_bytes(lines() + line + b"\n")
    with pytest.raises(CorpusError, match=message) as caught:
        read(corpus)
    assert str(corpus) in str(caught.value)


@pytest.mark.parametrize("token", [10, -1])
def test_wrong_vocabulary(corpus: Path, token: int) -> None:
    corpus.write_bytes(lines((*ROWS, CorpusRow("c", "math", 0.0, (1,), (2, token)))))
    with pytest.raises(CorpusError, match=f"row c has token {token}, outside .* vocabulary of 10"):
        read(corpus)


def test_manifest_of_another_target(corpus: Path) -> None:
    write_manifest(corpus, manifest("f" * 16))
    with pytest.raises(CorpusError, match=r"was made with target tiny .f{16}., not with 0123"):
        read(corpus)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"prompts": []}', "[" * 100_000])
def test_damaged_manifest(corpus: Path, text: str) -> None:
    manifest_path(corpus).write_text(text)
    with pytest.raises(CorpusError, match="is no corpus manifest"):
        read(corpus)


def test_empty(tmp_path: Path, corpus: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(CorpusError, match=r"empty\.jsonl adds no rows"):
        read(empty)
    with pytest.raises(CorpusError, match=r"corpus\.jsonl adds no rows"):
        read(corpus, corpus)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"does not exist"):
        read(tmp_path / "nowhere.jsonl")


PACKED = gzip.compress(lines())


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("cut.jsonl.gz", PACKED[:-12], r"\d"),
        ("garbled.jsonl.gz", PACKED[:12] + b"\xff\xff\xff\xff" + PACKED[16:], "0"),
        ("plain.jsonl.gz", b"no gzip at all", "0"),
        ("cut.jsonl.xz", lzma.compress(lines())[:-12], r"\d"),
        ("plain.jsonl.xz", b"no xz at all", "0"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, data: bytes, line: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=rf"{name} cannot be read after line {line}"):
        list(read_rows(path))
