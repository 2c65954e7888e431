"""The arithmetic of the comparison, by hand; the order of measuring; what is kept on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blockdraft_bench.common.answers import Answer, speed_ratio
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.prompts import Prompt, PromptSet
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.samples import (
    AnswerKey,
    AnswerStore,
    Limits,
    SampleAnswers,
    answer_all,
)
from blockdraft_bench.peers.answers import Stopwatch, Variant
from blockdraft_bench.peers.available import LLAMA_CPP, TRANSFORMERS, choose_peers
from blockdraft_bench.peers.report import FirstDivergence
from blockdraft_bench.peers.speeds import compare
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PLAIN = Variant("blockdraft", "plain", "float32")
DRAFTED = Variant("blockdraft", "drafted", "float32")
OTHER = Variant("other", "plain", "bfloat16")


def answer(tokens: Sequence[int], seconds: float, *, ttft: float = 0.5, first: int = 1) -> Answer:
    return Answer(tuple(tokens), (), False, ttft, seconds, first)


# Speeds: plain 6 tokens in 3 s = 2/s; drafted 6 in 1.5 s = 4/s; other 6 in 1 s = 6/s, of whose
# second answer two tokens came first.
ANSWERS = {
    PLAIN: [answer([1, 2, 3], 2.0, ttft=0.1), answer([4, 5, 6, 7, 8], 1.0, ttft=0.3)],
    DRAFTED: [answer([1, 2, 3], 1.0), answer([4, 5, 6, 7, 8], 0.5)],
    OTHER: [answer([1, 2, 9, 9], 0.25), answer([4, 5, 6, 7, 8], 0.75, first=2)],
}


NAMES = [("gsm8k", "a"), ("mbpp", "b")]


class TestCompare:
    def test_by_hand(self) -> None:
        plain, drafted, other = compare(ANSWERS, NAMES, plain=PLAIN, drafted=DRAFTED, seed=0)
        variants = [Variant(r.peer, r.variant, r.dtype) for r in (plain, drafted, other)]
        assert variants == [PLAIN, DRAFTED, OTHER]
        assert [r.tokens_per_second for r in (plain, drafted, other)] == [2.0, 4.0, 6.0]
        assert [r.ratio_to_plain.value for r in (plain, drafted, other)] == [1.0, 2.0, 3.0]
        assert [r.ratio_to_drafted.value for r in (plain, drafted, other)] == [0.5, 1.0, 1.5]
        assert (other.samples, other.tokens) == (2, 9)
        assert plain.ttft_seconds == pytest.approx(0.2)
        assert other.ttft_seconds == 0.5
        assert other.identical_share == 0.5
        assert other.first_divergences == (FirstDivergence("gsm8k", "a", 2),)
        assert drafted.identical_share == 1.0
        assert drafted.first_divergences == ()

    def test_the_interval_draws_prompts_with_both_answers(self) -> None:
        # One prompt is 10 times as slow as the other for both: their ratio is 2 whatever is drawn.
        own = [answer([0] * 5, 1.0), answer([0] * 5, 10.0)] * 4
        other = [answer([0] * 5, 2.0), answer([0] * 5, 20.0)] * 4
        assert speed_ratio(own, other, seed=3) == Estimate(2.0, (2.0, 2.0), 8)
        # Where the prompts disagree, it lies between one's ratio and the other's.
        unlike = [answer([0] * 5, 2.0), answer([0] * 5, 10.0)] * 4
        estimate = speed_ratio(own, unlike, seed=3)
        assert estimate.value == pytest.approx(12 / 11)
        low, high = estimate.ci95 or (0.0, 0.0)
        assert 1.0 <= low < 12 / 11 < high <= 2.0

    def test_few_prompts_have_no_interval(self) -> None:
        few = speed_ratio([answer([1, 2], 1.0)] * 7, [answer([1, 2], 4.0)] * 7, 0)
        assert few == Estimate(4.0, None, 7)

    def test_answers_of_one_token_have_no_speed(self) -> None:
        answers = {v: [answer([1], 0.0), answer([2], 0.0)] for v in (PLAIN, DRAFTED)}
        plain, _ = compare(answers, NAMES, plain=PLAIN, drafted=DRAFTED, seed=0)
        assert plain.tokens_per_second is None
        assert plain.ratio_to_plain.value is None
        assert plain.ratio_to_plain.ci95 is None
        assert plain.identical_share == 1.0


class TestStopwatch:
    def test_tokens_that_come_together(self) -> None:
        stopwatch = Stopwatch(10.0)
        for count, time in ((3, 10.5), (2, 11.5), (1, 13.0)):
            stopwatch.came(count, time)
        found = stopwatch.answer([5, 6, 7, 8, 9, 1], {1})
        assert found == Answer((5, 6, 7, 8, 9, 1), (), True, 0.5, 2.5, first_tokens=3)
        assert found.timed_tokens == 3

    def test_what_follows_a_stop_token_is_cut(self) -> None:
        stopwatch = Stopwatch(0.0)
        stopwatch.came(4, 1.0)
        assert stopwatch.answer([5, 1, 6, 1], {1}) == Answer(
            (5, 1), (), True, 1.0, 0.0, first_tokens=2
        )


class Recording:
    """A decoder that notes when it is asked."""

    def __init__(self, variant: Variant, log: list[tuple[str, int, int]]) -> None:
        self.variant = variant
        self.log = log

    def decode(self, request: GenerationRequest) -> Answer:
        self.log.append((self.variant.name, request.prompt[0], request.max_output_tokens))
        return answer([request.prompt[0], len(self.log)], 1.0)


PROMPTS = [
    PromptSet("one", (Prompt("a", (10,)), Prompt("b", (20,)))),
    PromptSet("two", (Prompt("a", (30,)),)),
]
LIMITS = Limits(64, frozenset({0}))


def peer_store(folder: Path, settings: str = "s") -> AnswerStore:
    return ResultStore(AnswerKey, SampleAnswers, settings, folder / "samples.jsonl")


def measure_peers(
    decoders: Sequence[Recording],
    store: AnswerStore,
    on_answer: Callable[[str], None] = lambda dataset: None,
) -> dict[Variant, list[Answer]]:
    named = {str(decoder.variant): decoder.decode for decoder in decoders}
    groups = [(name,) for name in named]
    found = answer_all(
        PROMPTS, [0.0], LIMITS, groups, SampleDecoder(named), store, on_answers=on_answer
    )
    return {
        decoder.variant: [a for each in found for a in each.answers[str(decoder.variant)]]
        for decoder in decoders
    }


def test_decoders_take_turns_and_warm_up_once(tmp_path: Path) -> None:
    log: list[tuple[str, int, int]] = []
    decoders = [Recording(variant, log) for variant in (PLAIN, DRAFTED)]
    answers = measure_peers(decoders, peer_store(tmp_path))
    assert log == [
        ("plain", 10, 16), ("plain", 10, 64), ("drafted", 10, 16), ("drafted", 10, 64),
        ("drafted", 20, 64), ("plain", 20, 64),
        ("plain", 30, 64), ("drafted", 30, 64),
    ]  # fmt: skip
    assert [a.token_ids[0] for a in answers[DRAFTED]] == [10, 20, 30]

    # Again with a peer more: only its answers are decoded, the others are as they were.
    log.clear()
    decoders.append(Recording(OTHER, log))
    seen: list[str] = []
    again = measure_peers(
        decoders,
        peer_store(tmp_path),
        seen.append,
    )
    assert {name for name, _, _ in log} == {"plain"}
    assert len(log) == 4
    assert seen == ["one"] * 6 + ["two"] * 3
    assert {v: again[v] for v in answers} == answers

    # Other settings share the file and nothing else.
    log.clear()
    measure_peers(decoders[:1], peer_store(tmp_path, "t"))
    assert len(log) == 4


def test_a_peer_that_cannot_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here: set[str] = {"llama_cpp", "transformers"}
    monkeypatch.setattr("blockdraft_bench.peers.available._installed", here.__contains__)
    chosen, skipped = choose_peers((), Path("model.gguf"))
    assert chosen == (LLAMA_CPP,)
    assert skipped == {TRANSFORMERS: "not installed; try `pip install torch`"}
    with pytest.raises(BenchUsageError, match="transformers cannot take part: not installed"):
        choose_peers([TRANSFORMERS], Path("model.gguf"))
    here.add("torch")
    assert choose_peers([TRANSFORMERS], Path("model.gguf")) == ((TRANSFORMERS,), {})
    with pytest.raises(BenchUsageError, match=r"reads only \.gguf files, which model is not"):
        choose_peers([LLAMA_CPP], tmp_path / "model")
