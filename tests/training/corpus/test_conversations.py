"""Conversations of several turns: each completion of the target is in the prompt of the next."""

from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny import IM_END
from tests.training.corpus.making import lines, make, make_until, settings, write_prompts

from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_training.corpus.conversations import REPLACEMENT, Conversation, answered
from blockdraft_training.corpus.prompts import CorpusPrompt, read_prompts
from blockdraft_training.corpus.rows import CorpusRow, read_rows
from blockdraft_training.settings import PromptFile

COUNT = 6
LONG = {"max_tokens": 40, "max_prompt_tokens": 240}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    turns = [(f"Question {i}", f"And {i}?") for i in range(COUNT)]
    return write_prompts(tmp_path / "questions.jsonl", turns)


def rows_of(corpus: Path) -> dict[str, CorpusRow]:
    return {row.id: row for row in read_rows(corpus)}


def text_of(tokenizer: Tokenizer, row: CorpusRow) -> str:
    assert row.response[-1] == IM_END
    return tokenizer.decode(row.response[:-1])


def test_the_next_prompt_holds_all_that_was_said(
    target: Path, tokenizer: Tokenizer, tmp_path: Path, questions: Path
) -> None:
    output = tmp_path / "corpus.jsonl"
    summary = make(target, output, questions, turns=3, **LONG)
    rows = rows_of(output)
    made_up = {
        prompt.id: prompt.text
        for prompt in read_prompts(PromptFile("", tmp_path / "corpus.self-chat.jsonl"))
    }
    second = [name for name in rows if name.endswith("/turn-2")]
    third = [name for name in rows if name.endswith("/turn-3")]
    assert summary.rows == summary.new_rows == COUNT + len(second) + len(third)
    assert len(second) > 1
    assert third
    # The file has two messages of each user; the target makes up the third.
    assert {name for name, text in made_up.items() if text} >= set(third)
    for number in range(COUNT):
        first, then, last = (rows.get(f"q/{number}{end}") for end in ("", "/turn-2", "/turn-3"))
        assert first is not None
        said = [f"Question {number}"]
        for row, following in (
            (then, f"And {number}?"),
            (last, made_up.get(f"q/{number}/turn-3", "")),
        ):
            if row is None:
                break
            said += [text_of(tokenizer, first), following]
            chat = Conversation(CorpusPrompt("", "", ("",)), tuple(said)).messages
            assert row.prompt == tuple(tokenizer.encode_chat(chat))
            assert row.source == "q"
            first = row


def test_only_a_whole_answer_is_followed(tokenizer: Tokenizer) -> None:
    prompts = [CorpusPrompt(name, "q", ("Hello",)) for name in ("whole", "cut", "broken", "none")]
    said = tuple(tokenizer.encode("Hi"))
    broken = next((token,) for token in range(256) if REPLACEMENT in tokenizer.decode((token,)))
    responses = {"whole": (*said, IM_END), "cut": said, "broken": (*broken, IM_END)}
    rows = {name: CorpusRow(name, "q", 0.0, (1,), each) for name, each in responses.items()}
    begun = [Conversation(prompt, prompt.turns) for prompt in prompts]
    heard = answered(begun, rows, tokenizer)
    assert [(each.prompt.id, each.texts) for each in heard] == [("whole", ("Hello", "Hi"))]


def test_turns_are_named_and_numbered() -> None:
    first = Conversation(CorpusPrompt("p", "q", ("a", "c")), ("a",))
    assert (first.turn, first.row_id) == (1, "p")
    heard = first.then("b")
    assert (heard.turn, heard.row_id) == (1, "p")
    second = heard.then("c")
    assert (second.turn, second.row_id) == (2, "p/turn-2")
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]


def test_a_corpus_may_get_more_turns_and_be_interrupted(
    target: Path, tmp_path: Path, questions: Path
) -> None:
    whole, grown = tmp_path / "whole.jsonl", tmp_path / "grown.jsonl"
    once: dict[str, Any] = {"self_chat": 3, **LONG}
    more = {**once, "turns": 3}
    make(target, whole, questions, **more)
    make(target, grown, questions, **once)
    for _ in range(2):
        make_until(2, settings(target, grown, questions, **more))
    make(target, grown, questions, **more)
    assert lines(grown) == lines(whole)
    assert make(target, grown, questions, **more).new_rows == 0


def test_later_messages_are_kept_apart_from_the_test_sets_too(
    target: Path, tmp_path: Path, questions: Path
) -> None:
    tests = write_prompts(tmp_path / "tests.jsonl", [("AND 1?", "and 2?")])
    free, kept = tmp_path / "free.jsonl", tmp_path / "kept.jsonl"
    make(target, free, questions, turns=2, **LONG)
    summary = make(target, kept, questions, turns=2, exclude=(tests,), **LONG)
    there = {"q/1/turn-2", "q/2/turn-2"} & rows_of(free).keys()
    assert there
    assert rows_of(kept).keys() == rows_of(free).keys() - there
    assert summary.dropped["excluded"] == len(there)


def test_what_is_too_long_ends(target: Path, tmp_path: Path, questions: Path) -> None:
    short = {**LONG, "max_prompt_tokens": 56}
    summary = make(target, tmp_path / "corpus.jsonl", questions, turns=2, **short)
    longer = make(target, tmp_path / "longer.jsonl", questions, turns=2, **LONG)
    assert summary.dropped["too_long"] > longer.dropped["too_long"] == 0
    assert summary.rows < longer.rows
