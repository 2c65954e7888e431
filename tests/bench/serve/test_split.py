"""One process against three: the arithmetic against numbers computed by hand."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from blockdraft_bench.common.process_time import family_cpu_seconds
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.serve.settings import Asked
from blockdraft_bench.serve.split import (
    Comparison,
    Decoding,
    GroupKey,
    SplitSummary,
    summarize_split,
)
from blockdraft_bench.serve.split_measure import record_of, requests_of_group
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest, Usage

IDS = ((1, 2, 3),)


def comparison(
    tokens: int, one: tuple[float, float], three: tuple[float, float], *, steps: int = 10
) -> Comparison:
    """Return two decodings of each side, of so many tokens in so many seconds."""
    return Comparison(
        (
            Decoding(IDS, tokens, one[0], steps, idle_cores=0.5),
            Decoding(IDS, tokens, one[1], steps, 0.2, 0.1, 0.04, idle_cores=0.1),
        ),
        (Decoding(IDS, tokens, three[0], steps), Decoding(IDS, tokens, three[1], steps)),
    )


def summarized(*groups: Comparison) -> SplitSummary:
    [found] = summarize_split({1: groups}, seed=0)
    return found


def test_speeds_are_ratios_of_sums() -> None:
    # One process: 20 tokens in 2 s, then 60 in 4 s. Three: in 4 s, then in 6 s.
    found = summarized(
        comparison(10, (0.5, 1.5), (2.0, 2.0)), comparison(30, (2.0, 2.0), (3.0, 3.0))
    )
    assert found.groups == 2
    assert found.one_process.tokens_per_second == pytest.approx(80 / 6)
    assert found.three_processes.tokens_per_second == pytest.approx(8.0)
    assert found.ratio.value == pytest.approx(0.6)
    assert found.loss_share == pytest.approx(0.4)
    assert found.one_process.step_seconds == pytest.approx(6 / 40)
    # 0.2 s, 0.1 s and 0.04 s in one decoding of 10 steps of each group, none in the other.
    side = found.one_process
    parts = (side.verify_seconds, side.draft_seconds, side.transport_seconds)
    assert parts == pytest.approx((0.01, 0.005, 0.002))
    assert found.one_process.tokens_per_step == 2.0
    assert found.one_process.idle_cores == pytest.approx(0.3)
    assert found.three_processes.idle_cores is None
    assert found.identical_share == 1.0
    assert found.requirement.met is False


def test_intervals_rest_on_groups_and_decide_only_where_they_agree() -> None:
    same, slow = comparison(10, (1.0, 1.0), (1.0, 1.0)), comparison(10, (1.0, 1.0), (2.0, 2.0))
    # All ratios are 0.5, whatever is drawn.
    certain = summarized(*[slow] * 8)
    assert (certain.ratio.ci95, certain.ratio.answers) == ((0.5, 0.5), 8)
    assert certain.one_process.ci95 == (10.0, 10.0)
    assert (certain.requirement.met, certain.requirement.certain) == (False, True)
    # With m slow ones of eight the ratio is 8 / (8 + m); a tenth of the draws has none.
    mixed = summarized(*[same] * 6, *[slow] * 2)
    assert mixed.ratio.value == pytest.approx(0.8)
    assert mixed.ratio.ci95 is not None
    low, high = mixed.ratio.ci95
    assert low < 0.7
    assert high == 1.0
    assert (mixed.requirement.met, mixed.requirement.certain) == (False, False)
    assert mixed.requirement.verdict() == "no, within the noise"


def test_few_groups_have_no_interval() -> None:
    found = summarized(*[comparison(10, (1.0, 1.0), (1.0, 1.0))] * 7)
    assert (found.ratio.value, found.ratio.ci95) == (1.0, None)
    assert found.one_process.ci95 is None
    assert (found.requirement.met, found.requirement.certain) == (True, False)


@pytest.mark.parametrize(
    ("seconds", "steps", "met"),
    [
        (1.05, 10, True),  # steps of 100 ms, 4.8 % lost
        (1.06, 10, False),  # 5.7 % lost
        (0.9, 10, True),  # gained
        (1.06, 100, False),  # steps of just 10 ms
        (2.0, 101, None),  # of less
    ],
)
def test_the_requirement(seconds: float, steps: int, met: bool | None) -> None:
    found = summarized(comparison(10, (1.0, 1.0), (seconds, seconds), steps=steps))
    assert found.requirement.met is met


def test_answers_are_compared_over_all_four_decodings() -> None:
    same = comparison(10, (1.0, 1.0), (1.0, 1.0))
    other = replace(same.three_processes[1], token_ids=((1, 2, 4),))
    found = summarized(same, Comparison(same.one_process, (same.three_processes[0], other)))
    assert found.identical_share == 0.5


def test_answers_of_one_token_measure_nothing() -> None:
    nothing = Decoding(((1,),), 0, 0.0, 0)
    assert summarize_split({1: [Comparison((nothing, nothing), (nothing, nothing))]}, 0) == ()


def test_a_decoding_by_the_engines_clock() -> None:
    def answer(start: float, end: float, steps: int) -> list[TokensGained]:
        usage = Usage(verification_steps=steps, first_token_time=start, last_token_time=end)
        usage.verify_seconds, usage.draft_seconds, usage.transport_seconds = 0.5, 0.25, 0.125
        last = TokensGained((4, 5), finish_reason=FinishReason.LENGTH, usage=usage)
        return [TokensGained((1,)), TokensGained((2, 3)), last]

    request = GenerationRequest("a", (1,))
    answers = [answer(1.0, 3.0, 2), answer(2.0, 2.5, 3)]
    found = Decoding.of([record_of(request, events) for events in answers], 0.25)
    assert found == Decoding(((1, 2, 3, 4, 5),) * 2, 8, 2.5, 5, 1.0, 0.5, 0.25, 0.25)


def test_groups_take_the_prompts_in_turn() -> None:
    pool = [GenerationRequest(str(i), (i,)) for i in range(5)]
    groups = [requests_of_group(pool, GroupKey(2, number)) for number in range(3)]
    assert [[r.request_id for r in group] for group in groups] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "0"],
    ]


@pytest.mark.parametrize(("requests", "concurrency", "whole"), [(None, 1, 8), (5, 2, 6), (4, 2, 4)])
def test_whole_groups(requests: int | None, concurrency: int, whole: int) -> None:
    settings = Asked(requests=requests, max_tokens=1, temperature=0.0, seed=0)
    assert settings.split_requests(concurrency) == whole


def test_groups_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "split.jsonl"
    found = comparison(10, (0.5, 1.5), (2.0, 2.0))
    ResultStore(GroupKey, Comparison, "settings", path).add(GroupKey(1, 0), found)
    again = ResultStore(GroupKey, Comparison, "settings", path)
    assert again.get(GroupKey(1, 0)) == found
    assert again.get(GroupKey(1, 1)) is None


def test_processor_time_of_a_family(tmp_path: Path) -> None:
    def process(number: int, parent: int, user: int, system: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        before = " ".join(["S", str(parent), *["0"] * 9])
        text = f"{number} (a (name) ) {before} {user} {system} 0 0"
        (folder / "stat").write_text(text)

    process(50, 1, 100, 20)
    process(40, 50, 30, 0)  # a child with a lower number
    process(60, 40, 0, 50)  # a grandchild
    process(70, 1, 1000, 1000)  # somebody else
    (tmp_path / "self").mkdir()
    # 200 ticks of the usual hundredth of a second.
    assert family_cpu_seconds(50, tmp_path) == pytest.approx(2.0)
    assert family_cpu_seconds(99, tmp_path) is None


def test_processor_time_of_this_process_grows() -> None:
    before = family_cpu_seconds(os.getpid())
    total = sum(i * i for i in range(1_500_000))
    after = family_cpu_seconds(os.getpid())
    assert total
    assert before is not None
    assert after is not None
    assert after > before
