"""Every decoder on every sample: what is timed, in which order, and what an interruption leaves."""

import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.bench.support import (
    ALONE,
    BLOCK_SIZE,
    DRAFT_LENGTH,
    LIMITS,
    MAX_TOKENS,
    PROMPTS,
    ScriptedPair,
    scripted_pair,
    tiny_decoder,
)
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder

from blockdraft_bench.completions import DRAFTED, PLAIN, CompletionRecord
from blockdraft_bench.decode import sample_decoder
from blockdraft_bench.engine.samples import (
    Answered,
    CompletionStore,
    Limits,
    SampleDecoder,
    answer_all,
)
from blockdraft_bench.errors import BenchError
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_bench.store import ResultStore
from blockdraft_verifier.scheduling.sequence import GenerationRequest

SETS = [
    PromptSet("one", (SamplePrompt("a", (10,)), SamplePrompt("b", (20,)))),
    PromptSet("two", (SamplePrompt("a", (30,)),)),
]


class Fakes:
    """Decoders that note what they are asked, and may be interrupted when they are."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []
        self.seen: list[str] = []
        self.interrupted: tuple[str, int] | None = None

    def completions(
        self, groups: Sequence[tuple[str, ...]], path: Path, settings: str = "s"
    ) -> dict[str, list[CompletionRecord]]:
        """Have the prompts of both sets answered by all groups."""
        names = [name for group in groups for name in group]
        decoder = SampleDecoder({name: partial(self._decode, name) for name in names})
        store: CompletionStore = ResultStore(dict[str, CompletionRecord], settings, path)
        limits = Limits(64, frozenset({0}))
        found = answer_all(
            SETS, [0.0], limits, groups, decoder, store, on_completions=self.seen.append
        )
        return {name: [a for each in found for a in each.completions[name]] for name in names}

    def _decode(self, name: str, request: GenerationRequest) -> CompletionRecord:
        if (name, request.prompt[0]) == self.interrupted:
            raise KeyboardInterrupt
        self.log.append((name, request.prompt[0], request.max_output_tokens))
        return CompletionRecord((request.prompt[0], len(self.log)), (), False)


def test_decoders_take_turns_and_warm_up_once(tmp_path: Path) -> None:
    path, fakes = tmp_path / "samples.jsonl", Fakes()
    completions = fakes.completions([("plain",), ("drafted",)], path)
    assert fakes.log == [
        ("plain", 10, 16), ("plain", 10, 64), ("drafted", 10, 16), ("drafted", 10, 64),
        ("drafted", 20, 64), ("plain", 20, 64),
        ("plain", 30, 64), ("drafted", 30, 64),
    ]  # fmt: skip
    assert [a.token_ids[0] for a in completions["drafted"]] == [10, 20, 30]

    # Again with one more: only its completions are decoded, the others are as they were.
    more = Fakes()
    again = more.completions([("plain",), ("drafted",), ("other",)], path)
    assert {name for name, _, _ in more.log} == {"other"}
    assert len(more.log) == 4
    assert more.seen == ["one"] * 6 + ["two"] * 3
    assert {name: again[name] for name in completions} == completions

    # Other settings share the file and nothing else.
    other = Fakes()
    other.completions([("plain",)], path, settings="t")
    assert len(other.log) == 4


@pytest.mark.parametrize("interrupted", ["a", "b", "c"])
def test_a_group_takes_turns_and_an_interrupted_sample_is_decoded_as_a_whole(
    tmp_path: Path, interrupted: str
) -> None:
    path, fakes = tmp_path / "samples.jsonl", Fakes()

    def orders() -> list[list[str]]:
        return [list(json.loads(line)["record"]) for line in path.read_text("utf-8").splitlines()]

    fakes.interrupted = interrupted, 20
    with pytest.raises(KeyboardInterrupt):
        fakes.completions([("a", "b", "c")], path)
    assert orders() == [["a", "b", "c"]]
    fakes.interrupted = None
    completions = fakes.completions([("a", "b", "c")], path)
    assert orders() == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    for name in "abc":
        assert [completion.token_ids[0] for completion in completions[name]] == [10, 20, 30]


@pytest.fixture(scope="module")
def compiled() -> ScriptedPair:
    return scripted_pair(ALONE)


@pytest.fixture
def pair(compiled: ScriptedPair) -> ScriptedPair:
    """Return a pair whose drafter is right about everything."""
    compiled.script(lambda offset: DRAFT_LENGTH)
    return compiled


def measure(pair: ScriptedPair, path: Path = Path(os.devnull)) -> list[Answered]:
    lengths = {PLAIN: 0, DRAFTED: DRAFT_LENGTH}
    decoder = sample_decoder(dict.fromkeys(lengths, pair.decoder), lengths)
    store: CompletionStore = ResultStore(dict[str, CompletionRecord], "x", path)
    return answer_all([PROMPTS], [0.0], LIMITS, [tuple(lengths)], decoder, store)


def test_decodes_every_sample_by_every_method(pair: ScriptedPair) -> None:
    [decoded] = measure(pair)
    assert (decoded.dataset, decoded.temperature) == ("tiny", 0.0)
    assert [request.request_id for request in decoded.requests] == ["short", "long"]
    reference = ReferenceDecoder(tiny_decoder().config, params_from_decoder(tiny_decoder()))
    for index, request in enumerate(decoded.requests):
        tokens = list(request.prompt)
        plain, drafted = (decoded.completions[method][index] for method in (PLAIN, DRAFTED))
        for _ in range(4):
            tokens.append(int(np.argmax(reference.logits(tokens)[-1])))
        assert len(plain.token_ids) == MAX_TOKENS
        assert plain.token_ids[:4] == tuple(tokens[-4:])
        assert drafted.token_ids == plain.token_ids
        assert plain.steps == ((0, 0),) * (MAX_TOKENS - 1)
        assert drafted.steps == ((DRAFT_LENGTH, DRAFT_LENGTH),) * 4


def test_times_are_those_of_decoding(pair: ScriptedPair) -> None:
    draft_seconds = 0.03
    draft = pair.method.draft

    def slow(position: int, anchor: int, length: int) -> Sequence[int]:
        if length:
            time.sleep(draft_seconds)
        return draft(position, anchor, length)

    pair.method.draft = slow
    request = GenerationRequest("one", PROMPTS.prompts[0].token_ids, max_output_tokens=1 + 4)
    started = time.perf_counter()
    decoded = pair.decoder.decode_alone(request)
    passed = time.perf_counter() - started
    assert decoded.steps == ((DRAFT_LENGTH, DRAFT_LENGTH),)
    assert decoded.timed_tokens == BLOCK_SIZE
    # The only draft was computed after the first token and before the others.
    assert draft_seconds < decoded.decode_seconds < passed
    assert 0.0 < decoded.ttft_seconds < passed - draft_seconds


def test_prompts_are_computed_in_full(pair: ScriptedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 0
    runner = pair.decoder.runner
    run = runner.run

    def count(step: Sequence[Any], **more: Any) -> Any:
        nonlocal rows
        rows += sum(row.known_count for row in step)
        return run(step, **more)

    monkeypatch.setattr(runner, "run", count)
    request = GenerationRequest("one", PROMPTS.prompts[1].token_ids, max_output_tokens=1)
    for time_ in (1, 2):
        pair.decoder.decode_alone(request)
        assert rows == time_ * len(request.prompt)


def test_a_compilation_while_being_timed_is_an_error(pair: ScriptedPair, tmp_path: Path) -> None:
    calls = 0
    draft = pair.method.draft

    def compiling(position: int, anchor: int, length: int) -> Sequence[int]:
        nonlocal calls
        calls += 1
        # A new shape each time, so that neither the warm-up nor an earlier call has compiled it.
        jax.jit(lambda x: x * 3)(np.zeros(1000 + calls, np.float32)).block_until_ready()
        return draft(position, anchor, length)

    pair.method.draft = compiling
    path = tmp_path / "samples.jsonl"
    with pytest.raises(BenchError, match="were compiled while being timed"):
        measure(pair, path)
    assert not path.exists()
