"""Results on disk: each once, under its own settings, whatever interrupts the writing."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from blockdraft_bench.errors import BenchError
from blockdraft_bench.store import Key, ResultStore


@dataclass(frozen=True, slots=True)
class Record:
    tokens: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]


KEY: Key = ("gsm8k", 0.0, 3)
RECORD = Record((5, 6, 7), ((3, 2),))


def opened(path: Path, settings: str = "s") -> ResultStore[Record]:
    return ResultStore(Record, settings, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    opened(path).add(KEY, RECORD)
    return path


def test_comes_back_as_it_was(path: Path) -> None:
    assert opened(path).get(KEY) == RECORD
    assert opened(path).get(("gsm8k", 1.0, 3)) is None


def test_says_what_is_taken_over_and_from_when(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: list[Key] = [KEY, ("a",), ("b",), ("c",)]
    opened(path).add(keys[1], RECORD)
    times = [datetime(2026, 11, 25, 10, minute).astimezone().isoformat() for minute in (40, 12)]
    lines = [
        json.dumps({**json.loads(line), "time": time})
        for line, time in zip(path.read_text("utf-8").splitlines(), times, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    store = opened(path)
    store.add(keys[2], RECORD)
    store.announce(keys)
    assert capsys.readouterr().err == (
        "taking over 2 of 4 results measured 2026-11-25 10:12 to 10:40"
        f" (delete {path} to measure anew)\n"
    )
    store.announce(keys[2:])
    assert not capsys.readouterr().err


def test_other_settings_are_left_alone_however_they_look(path: Path) -> None:
    store = opened(path, "other")
    assert store.get(KEY) is None
    store.add(KEY, Record((), ()))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"settings": "earlier", "sample": "gsm8k/1"}\n')
    assert opened(path).get(KEY) == RECORD


def test_a_key_counts_once(path: Path) -> None:
    store = opened(path)
    store.add(KEY, Record((), ()))
    assert store.get(KEY) == RECORD
    lines = path.read_text("utf-8")
    path.write_text(lines + lines.replace("[5,6,7]", "[1]"), encoding="utf-8")
    assert opened(path).get(KEY) == RECORD


def test_a_line_that_was_being_written_is_dropped(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-5])
    store = opened(path)
    assert path.read_bytes() == whole
    store.add(("mbpp",), RECORD)
    assert opened(path).get(("mbpp",)) == RECORD


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "malformed"),
        ("[]", "got `array`"),
        ("{}", "no 'settings'"),
        ('{"settings": "s"}', "no 'key'"),
        ('{"settings": "s", "key": ["", 0]}', "no 'record'"),
        ('{"settings": "s", "key": {"dataset": 1}, "record": {}}', "got `object`"),
        (
            '{"settings": "s", "key": [], "record": {"tokens": [""]}}',
            r"got `str` - at `\$.tokens\[0\]`",
        ),
    ],
)
def test_says_what_is_damaged(path: Path, line: str, message: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(BenchError, match=f"samples.jsonl, line 2 is no result: .*{message}"):
        opened(path)
