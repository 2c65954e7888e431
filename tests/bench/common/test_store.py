"""Results on disk: each once, under its own settings, whatever interrupts the writing."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.store import ResultStore


@dataclass(frozen=True, slots=True)
class Key:
    dataset: str
    temperature: float


@dataclass(frozen=True, slots=True)
class Record:
    tokens: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]


KEY, RECORD = Key("gsm8k", 0.0), Record((5, 6, 7), ((3, 2),))


def opened(path: Path, settings: str = "s") -> ResultStore[Key, Record]:
    return ResultStore(Key, Record, settings, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    opened(path).add(KEY, RECORD)
    return path


def test_comes_back_as_it_was(path: Path) -> None:
    assert opened(path).get(KEY) == RECORD
    assert opened(path).get(replace(KEY, temperature=1.0)) is None


def test_records_are_in_their_order(path: Path) -> None:
    store = opened(path)
    other, found = Key("mbpp", 0.0), Record((1,), ())
    store.add(other, found)
    assert list(opened(path)) == [RECORD, found]


def test_says_what_is_taken_over_and_from_when(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [KEY, *(replace(KEY, temperature=float(i)) for i in range(1, 4))]
    opened(path).add(keys[1], RECORD)
    lines = path.read_text("utf-8").splitlines()
    times = [datetime(2026, 11, 25, 10, minute).astimezone().isoformat() for minute in (40, 12)]
    lines = [
        json.dumps({**json.loads(line), "time": time})
        for line, time in zip(lines, times, strict=True)
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


def test_without_a_file_records_stay_in_memory() -> None:
    store = ResultStore(Key, Record, "s")
    store.add(KEY, RECORD)
    assert store.get(KEY) == RECORD


def test_other_settings_are_left_alone(path: Path) -> None:
    store = opened(path, "other")
    assert list(store) == []
    store.add(KEY, Record((), ()))
    assert list(opened(path)) == [RECORD]


def test_lines_of_other_settings_may_look_otherwise(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write('{"settings": "earlier", "sample": "gsm8k/1"}\n')
    assert list(opened(path)) == [RECORD]


def test_a_key_counts_once(path: Path) -> None:
    store = opened(path)
    store.add(KEY, Record((), ()))
    assert list(store) == [RECORD]
    path.write_text(path.read_text("utf-8") * 2, encoding="utf-8")
    assert list(opened(path)) == [RECORD]


def test_a_line_that_was_being_written_is_dropped(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-5])
    store = opened(path)
    assert path.read_bytes() == whole
    store.add(Key("mbpp", 0.0), RECORD)
    assert len(list(opened(path))) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "malformed"),
        ("[]", "got `array`"),
        ("{}", "no 'settings'"),
        ('{"settings": "s"}', "no 'key'"),
        ('{"settings": "s", "key": {"dataset": "", "temperature": 0}}', "no 'record'"),
        ('{"settings": "s", "key": {"dataset": 1}, "record": {}}', r"got `int` - at `\$.dataset`"),
    ],
)
def test_says_what_is_damaged(path: Path, line: str, message: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(BenchError, match=f"samples.jsonl, line 2 is no result: .*{message}"):
        opened(path)
