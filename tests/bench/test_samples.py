"""Every decoder on every sample: in which order, and what an interruption leaves."""

import json
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_bench.samples import CompletionStore, Limits, answer_all
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
        self,
        names: Sequence[str],
        path: Path,
        identity: str = "model",
        temperatures: Sequence[float] = (0.0,),
    ) -> dict[str, list[CompletionRecord]]:
        """Have the prompts of both sets answered by all decoders."""
        store: CompletionStore = ResultStore(dict[str, CompletionRecord], "s", path)
        found = answer_all(
            SETS,
            temperatures,
            Limits(64, frozenset({0})),
            {name: partial(self._decode, name) for name in names},
            store,
            identity=[identity],
            on_sample=self.seen.append,
        )
        return {name: [a for each in found for a in each.completions[name]] for name in names}

    def _decode(self, name: str, request: GenerationRequest) -> CompletionRecord:
        if (name, request.prompt[0]) == self.interrupted:
            raise KeyboardInterrupt
        self.log.append((name, request.prompt[0], request.max_output_tokens))
        return CompletionRecord((request.prompt[0], len(self.log)))


def test_decoders_take_turns_and_warm_up_once(tmp_path: Path) -> None:
    path, fakes = tmp_path / "samples.jsonl", Fakes()
    completions = fakes.completions(["plain", "drafted"], path)
    assert fakes.log == [
        ("plain", 10, 16), ("drafted", 10, 16),
        ("plain", 10, 64), ("drafted", 10, 64),
        ("drafted", 20, 64), ("plain", 20, 64),
        ("plain", 30, 64), ("drafted", 30, 64),
    ]  # fmt: skip
    assert [a.token_ids[0] for a in completions["drafted"]] == [10, 20, 30]

    # Again at one temperature more: the others are as they were.
    more = Fakes()
    again = more.completions(["plain", "drafted"], path, temperatures=(0.0, 1.0))
    assert len(more.log) == 2 + 6
    # What the store has is counted first.
    assert more.seen == ["one", "one", "two"] * 2
    assert {name: again[name][:2] for name in again} == {
        name: completions[name][:2] for name in completions
    }

    # Other models share the file and nothing else.
    other = Fakes()
    other.completions(["plain", "drafted"], path, identity="another")
    assert len(other.log) == 2 + 6


def test_samples_are_answered_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)
    prompts = [PromptSet("many", tuple(SamplePrompt(str(i), (i,)) for i in range(3)))]

    def decode(request: GenerationRequest) -> CompletionRecord:
        if request.max_output_tokens == 64:  # not the warm-up
            together.wait()
        return CompletionRecord(request.prompt)

    store: CompletionStore = ResultStore(dict[str, CompletionRecord], "s", tmp_path / "s.jsonl")
    limits = Limits(64, frozenset())
    [found] = answer_all(prompts, [0.0], limits, {"plain": decode}, store, concurrency=3)
    assert [one.token_ids for one in found.completions["plain"]] == [(0,), (1,), (2,)]
    assert found.sample_ids == ("0", "1", "2")


def test_the_seed_and_the_nucleus_are_part_of_the_question() -> None:
    prompt = SamplePrompt("a", (1, 2))
    first = Limits(8, frozenset({3}), seed=7, top_p=0.5).request("one", prompt, 1.0)
    assert (first.sampling.temperature, first.sampling.top_p) == (1.0, 0.5)
    seeds = {
        Limits(8, frozenset(), seed).request(dataset, sample, 1.0).sampling.seed
        for seed in (7, 8)
        for dataset in ("one", "two")
        for sample in (prompt, SamplePrompt("b", (1, 2)))
    }
    assert first.sampling.seed in seeds
    assert len(seeds) == 8


@pytest.mark.parametrize("interrupted", ["a", "b", "c"])
def test_an_interrupted_sample_is_decoded_as_a_whole(tmp_path: Path, interrupted: str) -> None:
    path, fakes = tmp_path / "samples.jsonl", Fakes()

    def orders() -> list[list[str]]:
        return [list(json.loads(line)["record"]) for line in path.read_text("utf-8").splitlines()]

    fakes.interrupted = interrupted, 20
    with pytest.raises(KeyboardInterrupt):
        fakes.completions(["a", "b", "c"], path)
    assert orders() == [["a", "b", "c"]]
    fakes.interrupted = None
    completions = fakes.completions(["a", "b", "c"], path)
    assert orders() == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    for name in "abc":
        assert [completion.token_ids[0] for completion in completions[name]] == [10, 20, 30]
