"""Every method on every sample: what is timed, in which order, and what an interruption leaves."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.bench.support import (
    BLOCK_SIZE,
    DRAFT_LENGTH,
    LENGTHS,
    LIMITS,
    MAX_TOKENS,
    METHODS,
    PROMPTS,
    Methods,
    tiny_decoder,
)
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder

from blockdraft_bench.answers import PLAIN, Answer
from blockdraft_bench.engine.samples import (
    Answered,
    AnswerStore,
    Limits,
    SampleDecoder,
    answer_all,
)
from blockdraft_bench.errors import BenchError
from blockdraft_bench.prompts import Prompt, PromptSet
from blockdraft_bench.store import ResultStore
from blockdraft_verifier.scheduling.sequence import GenerationRequest

ORDERS = [
    [PLAIN, "right", "wrong"],
    ["right", "wrong", PLAIN],
    ["wrong", PLAIN, "right"],
]


@pytest.fixture(scope="module")
def compiled() -> Methods:
    return Methods()


@pytest.fixture
def methods(compiled: Methods) -> Methods:
    compiled.script()
    return compiled


def draft_the_anchor(position: int, anchor: int, length: int) -> Sequence[int]:
    """Draft something for any answer, also for those that no script knows."""
    return [anchor] * length


def sample_store(path: Path | None = None, settings: str = "x") -> AnswerStore:
    return ResultStore(dict[str, Answer], settings, path)


def measure(
    methods: Methods,
    temperatures: Sequence[float] = (0.0,),
    store: AnswerStore | None = None,
    on_sample: Callable[[str], None] = lambda dataset: None,
    decoder: SampleDecoder | None = None,
) -> list[Answered]:
    return answer_all(
        [PROMPTS],
        temperatures,
        LIMITS,
        [tuple(LENGTHS)],
        decoder or methods.decoder(),
        store or sample_store(),
        on_answers=on_sample,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_decoders_take_turns_and_warm_up_once(tmp_path: Path) -> None:
    sets = [
        PromptSet("one", (Prompt("a", (10,)), Prompt("b", (20,)))),
        PromptSet("two", (Prompt("a", (30,)),)),
    ]
    log: list[tuple[str, int, int]] = []
    seen: list[str] = []

    def answers_of(*names: str, settings: str = "s") -> dict[str, list[Answer]]:
        """Decode with decoders that note when they are asked."""

        def decode(name: str, request: GenerationRequest) -> Answer:
            log.append((name, request.prompt[0], request.max_output_tokens))
            return Answer((request.prompt[0], len(log)), (), False)

        decoder = SampleDecoder({name: partial(decode, name) for name in names})
        store = sample_store(tmp_path / "samples.jsonl", settings)
        groups = [(name,) for name in names]
        limits = Limits(64, frozenset({0}))
        found = answer_all(sets, [0.0], limits, groups, decoder, store, on_answers=seen.append)
        return {name: [a for each in found for a in each.answers[name]] for name in names}

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


def test_decodes_every_sample_by_every_method(methods: Methods) -> None:
    [decoded] = measure(methods)
    assert (decoded.dataset, decoded.temperature) == ("tiny", 0.0)
    assert [request.request_id for request in decoded.requests] == ["short", "long"]
    reference = ReferenceDecoder(tiny_decoder().config, params_from_decoder(tiny_decoder()))
    for index, request in enumerate(decoded.requests):
        tokens = list(request.prompt)
        answers = {method: decoded.answers[method][index] for method in LENGTHS}
        for _ in range(4):
            tokens.append(int(np.argmax(reference.logits(tokens)[-1])))
        for answer in answers.values():
            assert len(answer.token_ids) == MAX_TOKENS
            assert answer.token_ids[:4] == tuple(tokens[-4:])
            assert answer.token_ids == answers[PLAIN].token_ids
        steps = {method: answers[method].steps for method in LENGTHS}
        assert steps[PLAIN] == ((0, 0),) * (MAX_TOKENS - 1)
        assert steps["right"] == ((DRAFT_LENGTH, DRAFT_LENGTH),) * 4
        assert {accepted for _, accepted in steps["wrong"]} == {0}


def test_the_order_of_the_methods_rotates(methods: Methods, tmp_path: Path) -> None:
    for method in METHODS:
        methods.pair(method).method.propose = draft_the_anchor
    path = tmp_path / "samples.jsonl"
    decoder = methods.decoder()
    greedy, sampled = measure(methods, (0.0, 1.0), sample_store(path), decoder=decoder)
    assert [list(line["record"]) for line in lines(path)] == [*ORDERS, ORDERS[0]]
    assert decoder.recompilations == 0
    # Sampled answers are those of plain decoding, too.
    assert sampled.temperature == 1.0
    for index in range(len(PROMPTS.prompts)):
        tokens = {method: sampled.answers[method][index].token_ids for method in LENGTHS}
        assert tokens["right"] == tokens["wrong"] == tokens[PLAIN]
        assert tokens[PLAIN] != greedy.answers[PLAIN][index].token_ids


def test_times_are_those_of_decoding(methods: Methods) -> None:
    draft_seconds = 0.03
    propose = methods.right.method.propose

    def slow(position: int, anchor: int, length: int) -> Sequence[int]:
        if length:
            time.sleep(draft_seconds)
        return propose(position, anchor, length)

    methods.right.method.propose = slow
    request = GenerationRequest("one", PROMPTS.prompts[0].token_ids, max_output_tokens=1 + 4)
    started = time.perf_counter()
    decoded = methods.right.decoder.decode_alone(request)
    passed = time.perf_counter() - started
    assert decoded.steps == ((DRAFT_LENGTH, DRAFT_LENGTH),)
    assert decoded.timed_tokens == BLOCK_SIZE
    # The only draft was computed after the first token and before the others.
    assert draft_seconds < decoded.decode_seconds < passed
    assert 0.0 < decoded.ttft_seconds < passed - draft_seconds


def test_prompts_are_computed_in_full(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 0
    runner = methods.right.decoder.runner
    run = runner.run

    def count(step: Sequence[Any], **more: Any) -> Any:
        nonlocal rows
        rows += sum(row.known_count for row in step)
        return run(step, **more)

    monkeypatch.setattr(runner, "run", count)
    request = GenerationRequest("one", PROMPTS.prompts[1].token_ids, max_output_tokens=1)
    for time_ in (1, 2):
        methods.right.decoder.decode_alone(request)
        assert rows == time_ * len(request.prompt)


def test_a_compilation_while_being_timed_is_an_error(methods: Methods, tmp_path: Path) -> None:
    calls = 0
    propose = methods.wrong.method.propose

    def compiling(position: int, anchor: int, length: int) -> Sequence[int]:
        nonlocal calls
        calls += 1
        # A new shape each time, so that neither the warm-up nor an earlier call has compiled it.
        jax.jit(lambda x: x * 3)(np.zeros(1000 + calls, np.float32)).block_until_ready()
        return propose(position, anchor, length)

    methods.wrong.method.propose = compiling
    path = tmp_path / "samples.jsonl"
    with pytest.raises(BenchError, match="were compiled while being timed"):
        measure(methods, store=sample_store(path))
    assert not path.exists()


@pytest.mark.parametrize("interrupted", ORDERS[1])
def test_a_sample_that_was_interrupted_is_decoded_again_as_a_whole(
    methods: Methods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    path = tmp_path / "samples.jsonl"
    decoder = methods.pair(interrupted).decoder
    decode = decoder.decode_alone

    def interrupt(request: GenerationRequest, max_draft_tokens: int | None = None) -> Answer:
        # In the second sample, when it is this method's turn.
        if path.exists() and (max_draft_tokens == 0) == (interrupted == PLAIN):
            signal.raise_signal(signal.SIGINT)
        return decode(request, max_draft_tokens)

    with monkeypatch.context() as patched:
        patched.setattr(decoder, "decode_alone", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure(methods, store=sample_store(path))
    [kept] = lines(path)
    assert (kept["key"][1], list(kept["record"])) == ("short", ORDERS[0])
    measure(methods, store=sample_store(path))
    assert [list(line["record"]) for line in lines(path)] == ORDERS[:2]


def test_an_interrupted_measurement_goes_on(methods: Methods, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"

    def interrupt(dataset: str) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        measure(methods, store=sample_store(path), on_sample=interrupt)
    first = path.read_bytes()
    assert len(first.splitlines()) == 1
    # The second sample was being written.
    with path.open("a", encoding="utf-8") as file:
        file.write('{"settings": "x", "data')
    [decoded] = measure(methods, store=sample_store(path))
    assert path.read_bytes().startswith(first)
    assert [list(line["record"]) for line in lines(path)] == ORDERS[:2]
    # Once more: nothing is left to decode, and the times are those that were measured.
    for method in METHODS:
        methods.pair(method).method.propose = lambda *_: pytest.fail("decoded again")
    assert measure(methods, store=sample_store(path)) == [decoded]
