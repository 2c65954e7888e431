"""Completions made of random tokens: valid, finished, and the same again."""

import json

from tools.fuzz.grammar_tokens import tiny_tokenizer

from blockdraft_bench.schemas.grammar import compiled, grammar_text
from blockdraft_bench.schemas.random_answers import RandomAnswers

TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "name": {"type": "string"}, "n": {"const": 1200}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def test_answers() -> None:
    tokenizer = tiny_tokenizer()
    start = compiled(grammar_text(TREE), tokenizer)
    answers = RandomAnswers(tokenizer, max_tokens=200, draft_length=4, seed=1)
    found = [answers(start) for _ in range(20)]
    assert len({answer.text for answer, _ in found}) > 10
    assert sum(answer.ended for answer, _ in found) > 15
    for answer, times in found:
        if answer.ended:
            assert json.loads(answer.text)["n"] == 1200
        assert 0 < answer.forced_tokens < answer.tokens
        assert answer.tokens == len(times.single)
        assert len(times.drafts) == answer.tokens // 4
        assert min(times.single + times.drafts) > 0
    again = RandomAnswers(tokenizer, max_tokens=200, draft_length=4, seed=1)
    assert [again(start)[0] for _ in range(20)] == [answer for answer, _ in found]


def test_an_answer_that_does_not_end() -> None:
    tokenizer = tiny_tokenizer()
    start = compiled(grammar_text({"type": "string", "minLength": 1000}), tokenizer)
    answer, _ = RandomAnswers(tokenizer, max_tokens=8, draft_length=4, seed=1)(start)
    assert (answer.tokens, answer.ended) == (8, False)
