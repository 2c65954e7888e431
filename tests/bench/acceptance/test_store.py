"""Answers on disk: each once, under its own settings, whatever interrupts the writing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdraft_bench.acceptance.store import AnswerKey, AnswerStore
from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.line_store import digest

KEY = AnswerKey("gsm8k", "gsm8k/1", digest([1, 2]), 0.0, True)
ANSWER = Answer((5, 6, 7), ((3, 2),), True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    AnswerStore("s", path).add(KEY, ANSWER)
    return path


def test_comes_back_as_it_was(path: Path) -> None:
    assert AnswerStore("s", path).get(KEY) == ANSWER


@pytest.mark.parametrize(
    "other",
    [{"temperature": 1.0}, {"drafted": False}, {"prompt": digest([1, 3])}, {"dataset": "math500"}],
)
def test_other_keys_are_other_answers(path: Path, other: dict[str, Any]) -> None:
    assert AnswerStore("s", path).get(replace(KEY, **other)) is None


def test_other_settings_are_left_alone(path: Path) -> None:
    store = AnswerStore("other", path)
    assert list(store) == []
    store.add(KEY, replace(ANSWER, stopped=False))
    assert AnswerStore("s", path).get(KEY) == ANSWER


def test_a_key_counts_once(path: Path) -> None:
    store = AnswerStore("s", path)
    store.add(KEY, replace(ANSWER, token_ids=(1,)))
    assert list(store) == [ANSWER]
    path.write_text(path.read_text("utf-8") * 2, encoding="utf-8")
    assert list(AnswerStore("s", path)) == [ANSWER]


def test_a_line_that_was_being_written_is_dropped(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-5])
    store = AnswerStore("s", path)
    assert path.read_bytes() == whole
    store.add(replace(KEY, drafted=False), ANSWER)
    assert len(list(AnswerStore("s", path))) == 2


@pytest.mark.parametrize("line", ["x", "[]", "{}", '{"settings": "s"}'])
def test_says_what_is_damaged(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(BenchError, match="line 2 is no answer"):
        AnswerStore("s", path)
