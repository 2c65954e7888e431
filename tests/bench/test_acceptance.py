"""Acceptance: by hand, with drafters right exactly as often as they are told, and as a command."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bench.support import (
    BLOCK_SIZE,
    DRAFT_LENGTH,
    LIMITS,
    MAX_TOKENS,
    PROMPTS,
    ScriptedPair,
    decoded_set,
    scripted_pair,
)

from blockdraft_bench import acceptance
from blockdraft_bench.acceptance import acceptance_table, in_groups, summarize
from blockdraft_bench.completions import DRAFTED, PLAIN, CompletionRecord
from blockdraft_bench.engine.samples import CompletionStore, Limits, SampleRequest, answer_all
from blockdraft_bench.errors import BenchError
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_bench.provenance import digest
from blockdraft_bench.result import ResultRow
from blockdraft_bench.run import Run
from blockdraft_bench.settings import AcceptanceSettings, PromptSettings
from blockdraft_bench.statistics import Estimate
from blockdraft_bench.store import ResultStore


def completion(*accepted: int, tokens: tuple[int, ...] = (1,)) -> CompletionRecord:
    return CompletionRecord(tokens, tuple((3, count) for count in accepted), stopped=False)


def by_hand(
    drafted: list[CompletionRecord], plain: list[CompletionRecord] | None = None, length: int = 3
) -> ResultRow:
    pairs = zip(drafted, plain or drafted, strict=True)
    samples = [{DRAFTED: one, PLAIN: other} for one, other in pairs]
    return summarize(decoded_set(*samples, temperature=1.0), length, seed=0)


def values(estimates: tuple[Estimate, ...]) -> list[float | None]:
    return [estimate.value for estimate in estimates]


def test_figures_by_hand() -> None:
    drafted = [completion(0, 1, 3, tokens=(1, 2)), completion(2, tokens=(3,))]
    plain = [completion(tokens=(1, 2)), completion(tokens=(4,))]
    row = by_hand(drafted, plain)
    assert (row["dataset"], row["temperature"]) == ("hand", 1.0)
    assert [row[n] for n in ("samples", "tokens", "steps", "verifications")] == [2, 3, 4, 4]
    assert row["acceptance_length"].value == pytest.approx(10 / 4)
    assert values(row["acceptance_per_position"]) == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    conditional = values(row["conditional_acceptance_per_position"])
    assert conditional == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert values(row["acceptance_decay"]) == pytest.approx([8 / 9, 3 / 4])
    assert row["reach_counts"] == [[3, 2, 1, 1], [1, 1, 1, 0]]
    assert row["identical_share"] == 0.5
    assert row["acceptance_length"].ci95 is None
    # Of four times as many completions a resample has mostly the one or the other: means of 7/3 or
    # 3.
    more = by_hand(drafted * 4, plain * 4)["acceptance_length"]
    assert more.value == row["acceptance_length"].value
    low, high = more.ci95
    assert 7 / 3 <= low < 10 / 4 < high <= 3.0
    cells = "| hand | 1 | 2 | 4 | 2.50 | 0.75 0.50 0.25 | 50.0% |"
    assert acceptance_table([row]).splitlines()[-1] == cells


def test_each_position_rests_on_the_answers_that_reached_it() -> None:
    row = by_hand([completion(3), completion(1, 0), completion(0), completion()])
    assert row["reach_counts"] == [[1, 1, 1, 1], [2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert row["acceptance_length"].completions == 3
    assert [e.completions for e in row["acceptance_per_position"]] == [3, 3, 3]
    assert [e.completions for e in row["conditional_acceptance_per_position"]] == [3, 2, 1]


def test_without_whole_drafts_there_is_nothing_to_say() -> None:
    row = by_hand([CompletionRecord((1, 2), ((1, 1),), False)] * 2, length=2)
    assert row["steps"] == 0
    assert row["acceptance_length"] == Estimate(None, None, 0)
    assert row["acceptance_per_position"] == (Estimate(None, None, 0),) * 2
    assert row["identical_share"] == 1.0


@pytest.fixture(scope="module")
def pair() -> ScriptedPair:
    return scripted_pair()


def measure(
    pair: ScriptedPair,
    prompts: PromptSet = PROMPTS,
    limits: Limits = LIMITS,
    store: CompletionStore | None = None,
    draft_length: int = DRAFT_LENGTH,
    temperature: float = 0.0,
    on_completion: Callable[[str], None] = lambda dataset: None,
) -> ResultRow:
    [answered] = answer_all(
        [prompts],
        [temperature],
        limits,
        [(DRAFTED,), (PLAIN,)],
        in_groups(pair.decoder, {DRAFTED: draft_length, PLAIN: 0}, top_p=1.0),
        store or ResultStore(dict[str, CompletionRecord], "x", Path(os.devnull)),
        many_at_a_time=True,
        on_completions=on_completion,
    )
    return summarize(answered, draft_length, limits.seed)


# Offset of the anchor in the completion, right tokens, next offset: 0 3 4; 4 1 6; 6 1 8; 8 3 12;
# 12 3 16, all with whole drafts; at 16 nothing is left. Accepted 3, 1, 1, 3, 3.
def at_times(offset: int) -> int:
    return 3 if offset % 4 == 0 and offset != 4 else 1


@pytest.mark.parametrize(
    ("right", "length", "shares", "conditional", "decay", "verifications"),
    [
        # Four blocks a completion, the last of them just as long as the completion may still get.
        (lambda offset: 3, 4.0, [1.0] * 3, [1.0] * 3, [1.0] * 2, (8, 8)),
        # One token a verification; the last three of a completion have shorter drafts.
        (lambda offset: 0, 1.0, [0.0] * 3, [0.0, None, None], [None] * 2, (32, 26)),
        (at_times, 16 / 5, [1.0, 0.6, 0.6], [1.0, 0.6, 1.0], [0.6, 1 / 0.6], (10, 10)),
    ],
)
def test_a_drafter_that_is_right_so_often(
    pair: ScriptedPair,
    right: Callable[[int], int],
    length: float,
    shares: list[float],
    conditional: list[float | None],
    decay: list[float | None],
    verifications: tuple[int, int],
) -> None:
    pair.script(right)
    row = measure(pair)
    assert row["acceptance_length"].value == pytest.approx(length)
    assert row["acceptance_length"].completions == 2
    assert values(row["acceptance_per_position"]) == pytest.approx(shares)
    for found, expected in (
        (row["conditional_acceptance_per_position"], conditional),
        (row["acceptance_decay"], decay),
    ):
        assert values(found) == [None if e is None else pytest.approx(e) for e in expected]
    assert (row["samples"], row["tokens"]) == (2, 2 * MAX_TOKENS)
    assert (row["verifications"], row["steps"]) == verifications
    assert row["identical_share"] == 1.0


def test_shortened_drafts_do_not_count(pair: ScriptedPair) -> None:
    # One token from the prompt, a block of four, and room for two more: one drafted, one not.
    limits = replace(LIMITS, max_tokens=7)
    pair.script(lambda offset: DRAFT_LENGTH, limits=limits)
    row = measure(pair, limits=limits)
    assert (row["steps"], row["verifications"]) == (2, 4)
    assert row["acceptance_length"].value == BLOCK_SIZE
    # With one token drafted there is no second position, and no decay.
    row = measure(pair, limits=limits, draft_length=1)
    assert row["acceptance_length"].value == 2.0
    assert values(row["acceptance_per_position"]) == [1.0]
    assert row["acceptance_decay"] == ()


@pytest.mark.parametrize("right", [0, DRAFT_LENGTH])
@pytest.mark.parametrize("end", [5, 8])
def test_the_verification_that_ends_in_a_stop_token_does_not_count(
    pair: ScriptedPair, right: int, end: int
) -> None:
    # A completion with many different tokens. With a perfect drafter its tokens 5 to 8 are a block,
    # so that the stop token is the first one drafted, or the target's own at the end.
    prompts = PromptSet("tiny", (SamplePrompt("one", tuple(range(0, 19 * 7, 7))),))
    [whole] = pair.script(lambda offset: 0, prompts=prompts)
    assert whole.token_ids[end] not in whole.token_ids[:end]
    limits = replace(LIMITS, stop_token_ids=frozenset({whole.token_ids[end]}))
    pair.script(lambda offset: right, prompts=prompts, limits=limits)
    row = measure(pair, prompts, limits)
    assert row["tokens"] == end + 1
    assert row["acceptance_length"] == Estimate(right + 1.0, None, 1)
    assert row["steps"] == row["verifications"] - 1


def test_the_seed_decides_what_is_sampled(pair: ScriptedPair, tmp_path: Path) -> None:
    pair.method.draft = lambda position, anchor, length: [anchor] * length

    def completions(seed: int, prompts: PromptSet) -> set[tuple[int, ...]]:
        path = tmp_path / f"{seed}-{len(prompts.prompts)}.jsonl"
        store: CompletionStore = ResultStore(dict[str, CompletionRecord], "x", path)
        row = measure(pair, prompts, replace(LIMITS, seed=seed), store, temperature=1.0)
        assert (row["temperature"], row["identical_share"]) == (1.0, 1.0)
        records = [json.loads(line)["record"] for line in path.read_text("utf-8").splitlines()]
        return {tuple(each["token_ids"]) for record in records for each in record.values()}

    first = completions(7, PROMPTS)
    assert completions(8, PROMPTS).isdisjoint(first)
    # A sample's completion does not depend on which others are measured.
    assert completions(7, PromptSet("tiny", PROMPTS.prompts[1:])) <= first


def test_the_nucleus_is_part_of_the_question(pair: ScriptedPair) -> None:
    asked: list[Any] = []
    request = LIMITS.request("tiny", PROMPTS.prompts[0], 1.0)
    decode = in_groups(pair.decoder, {PLAIN: 0}, top_p=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pair.decoder, "decode", lambda requests, on_completion: asked.extend(requests)
        )
        decode((PLAIN,), [SampleRequest("tiny", 0, request)], lambda index, found: None)
    [one] = asked
    assert one.sampling == replace(request.sampling, top_p=0.5)
    assert one.max_draft_tokens == 0


def test_many_prompts_of_other_lengths_all_get_their_answers(pair: ScriptedPair) -> None:
    pair.method.draft = lambda position, anchor, length: [anchor] * length
    prompts = [SamplePrompt(f"p{i}", tuple(range(1 + i, 4 + 7 * i))) for i in range(9)]
    done: list[str] = []
    limits = replace(LIMITS, max_tokens=8)
    row = measure(pair, PromptSet("many", tuple(prompts)), limits, on_completion=done.append)
    assert (row["samples"], row["tokens"], done) == (9, 72, ["many"] * 18)
    assert row["identical_share"] == 1.0


def test_an_interrupted_measurement_goes_on(pair: ScriptedPair, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"

    def store() -> CompletionStore:
        return ResultStore(dict[str, CompletionRecord], "x", path)

    pair.script(lambda offset: DRAFT_LENGTH)
    whole = measure(pair)

    def interrupt(dataset: str) -> None:
        if len(path.read_text("utf-8").splitlines()) == 3:
            raise KeyboardInterrupt

    # An interrupted decoder has work left, so it is not the one the other tests use.
    broken = scripted_pair()
    broken.script(lambda offset: DRAFT_LENGTH)
    with pytest.raises(KeyboardInterrupt):
        measure(broken, store=store(), on_completion=interrupt)
    assert measure(pair, store=store()) == whole
    assert len(path.read_text("utf-8").splitlines()) == 4
    # Drafts that get lost end the measurement.
    broken.method.draft = lambda position, anchor, length: [10**6] * length
    with pytest.raises(BenchError, match="out of step"):
        measure(broken)


SMALL = (
    "acceptance --target target --drafter random --block-size 4 --max-prompt-tokens 64"
    " --max-tokens 13 --concurrency 2 --samples 2 --dataset gsm8k mbpp.jsonl --draft-length 2"
)


def test_measures_reports_and_resumes(
    bench: Callable[..., int],
    reported: Callable[..., tuple[dict[str, Any], Path]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    report, output = reported("--temperature", "0")
    assert report["target"]["name"] == "tiny-llama"
    assert len(report["target"]["fingerprint"]) == len(report["drafter"]["fingerprint"]) == 16
    assert (report["drafter"]["trained"], report["drafter"]["block_size"]) == (False, 4)
    assert (report["draft_length"], report["dtype"]) == (2, "float32")
    assert [row["dataset"] for row in report["results"]] == ["gsm8k", "mbpp"]
    for row in report["results"]:
        assert row["samples"] == 2
        assert 1.0 <= row["acceptance_length"] <= 3.0
        # Two completions are too few for an interval.
        assert row["acceptance_length_ci95"] is None
        assert len(row["acceptance_per_position"]) == 2
        assert row["identical_share"] == 1.0
    completions = (output / "samples.jsonl").read_bytes()
    assert len(completions.splitlines()) == 2 * 2 * 2

    # Again, at one temperature more and as a table: only what is new is decoded.
    assert bench("--output", str(output), "--temperature", "0", "1") == 0
    page = capsys.readouterr().out
    assert (output / "acceptance.md").read_text("utf-8") == page
    assert page.count("\n| gsm8k | ") == page.count("\n| mbpp | ") == 2
    more = (output / "samples.jsonl").read_bytes()
    assert more.startswith(completions)
    assert len(more.splitlines()) == 2 * 2 * 2 * 2


def test_all_that_decides_an_answer_tells_measurements_apart(
    pair: ScriptedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        acceptance, "prepare", lambda prompts: SimpleNamespace(stop_token_ids=frozenset())
    )
    monkeypatch.setattr(acceptance, "load_pair", lambda *arguments, **more: pair.decoder)
    identities: list[str] = []

    def identify(run: Run, *settings: object) -> None:
        identities.append(digest(settings))
        raise InterruptedError

    monkeypatch.setattr(Run, "identify", identify)
    for settings in (
        AcceptanceSettings(),
        AcceptanceSettings(top_p=0.5),
        AcceptanceSettings(draft_length=1),
        AcceptanceSettings(prompts=PromptSettings(max_tokens=256, seed=1)),
        AcceptanceSettings(prompts=PromptSettings(max_tokens=5)),
        # Changes the speed alone.
        AcceptanceSettings(concurrency=1),
    ):
        with pytest.raises(InterruptedError), Run("acceptance", (), settings.result) as run:
            acceptance.measure(settings, run)
    assert identities[-1] == identities[0]
    assert len(set(identities)) == 5
