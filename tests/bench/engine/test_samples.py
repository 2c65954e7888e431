"""The order in which decoders answer samples, and what is kept of it on disk."""

from functools import partial
from pathlib import Path

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.prompts import Prompt, PromptSet
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.samples import (
    AnswerKey,
    AnswerStore,
    Limits,
    SampleAnswers,
    answer_all,
)
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPTS = [
    PromptSet("one", (Prompt("a", (10,)), Prompt("b", (20,)))),
    PromptSet("two", (Prompt("a", (30,)),)),
]
LIMITS = Limits(64, frozenset({0}))


def test_decoders_take_turns_and_warm_up_once(tmp_path: Path) -> None:
    log: list[tuple[str, int, int]] = []

    def answers_of(*names: str, settings: str = "s") -> dict[str, list[Answer]]:
        """Decode with decoders that note when they are asked."""

        def decode(name: str, request: GenerationRequest) -> Answer:
            log.append((name, request.prompt[0], request.max_output_tokens))
            return Answer((request.prompt[0], len(log)), (), False)

        decoder = SampleDecoder({name: partial(decode, name) for name in names})
        path = tmp_path / "samples.jsonl"
        store: AnswerStore = ResultStore(AnswerKey, SampleAnswers, settings, path)
        groups = [(name,) for name in names]
        found = answer_all(PROMPTS, [0.0], LIMITS, groups, decoder, store, on_answers=seen.append)
        return {name: [a for each in found for a in each.answers[name]] for name in names}

    seen: list[str] = []
    answers = answers_of("plain", "drafted")
    assert log == [
        ("plain", 10, 16), ("plain", 10, 64), ("drafted", 10, 16), ("drafted", 10, 64),
        ("drafted", 20, 64), ("plain", 20, 64),
        ("plain", 30, 64), ("drafted", 30, 64),
    ]  # fmt: skip
    assert [a.token_ids[0] for a in answers["drafted"]] == [10, 20, 30]

    # Again with one more: only its answers are decoded, the others are as they were.
    log.clear()
    seen.clear()
    again = answers_of("plain", "drafted", "other")
    assert {name for name, _, _ in log} == {"other"}
    assert len(log) == 4
    assert seen == ["one"] * 6 + ["two"] * 3
    assert {name: again[name] for name in answers} == answers

    # Other settings share the file and nothing else.
    log.clear()
    answers_of("plain", settings="t")
    assert len(log) == 4
