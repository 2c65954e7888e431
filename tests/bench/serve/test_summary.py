"""The arithmetic of a load against numbers computed by hand."""

from typing import Any

import pytest

from blockdraft_bench.serve.record import LoadLevel, Method, Records, RequestRecord, RunKey
from blockdraft_bench.serve.settings import LoadSettings, Objectives
from blockdraft_bench.serve.summary import (
    compare,
    costs_of_learning,
    distribution,
    rounds_note,
    speedup_table,
    speedups,
    summaries,
    summarize,
)

CLOSED, OPEN = LoadLevel("closed", 2.0), LoadLevel("open", 2.0)
NO_OBJECTIVES = Objectives()


def record(
    number: int, scheduled: float, *times: float, tokens: tuple[int, ...] = (), first: int = 1
) -> RequestRecord:
    """Return a completion whose messages had one token each, the first one `first`."""
    counts = (first, *(1 for _ in times[1:]))
    ids = tokens or tuple(range(sum(counts)))
    return RequestRecord(
        request=number,
        sample_id=f"sample {number}",
        scheduled=scheduled,
        sent=scheduled + 0.5,
        ended=times[-1],
        chunk_times=times,
        chunk_tokens=counts,
        token_ids=ids,
        finish_reason="length",
        prompt_tokens=10,
        cached_prompt_tokens=4,
        verification_steps=2,
        accepted_tokens=1,
    )


def failure(number: int, scheduled: float, ended: float, error: str) -> RequestRecord:
    """Return a completion that broke off after a token, which does not count."""
    return RequestRecord(
        number, "failed", scheduled, scheduled, ended, (scheduled,), (1,), (0,), error=error
    )


def summed(
    *records: RequestRecord, level: LoadLevel = CLOSED, objectives: Objectives = NO_OBJECTIVES
) -> dict[str, Any]:
    return summarize(level, "drafted", [Records(records)], objectives)


def test_times_of_a_request_count_from_when_it_was_due() -> None:
    # Due at 1, sent at 1.5; three tokens at 2, then one at 4 and one at 5.
    completion = record(0, 1.0, 2.0, 4.0, 5.0, first=3)
    assert (completion.ttft, completion.latency, completion.tpot) == (1.0, 4.0, 1.5)
    assert record(0, 0.0, 2.0).tpot is None


def test_a_run_with_a_failure() -> None:
    records = [
        record(0, 0.0, 1.0, 2.0, 3.0),  # TTFT 1, TPOT 1
        record(1, 0.0, 2.0, 2.5, 3.0),  # TTFT 2, TPOT 0.5
        record(2, 3.0, 4.0, 4.5, 10.0),  # TTFT 1, TPOT 3
        failure(3, 3.0, 3.1, "QUEUE_FULL"),
    ]
    found = summed(*records, objectives=Objectives(1.5, 1.0))
    assert (found["mode"], found["load"], found["method"]) == ("closed", 2.0, "drafted")
    assert (found["requests"], found["failed"], found["errors"]) == (4, 1, {"QUEUE_FULL": 1})
    assert (found["duration_seconds"], found["output_tokens"]) == (10.0, 9)
    # Two were in flight until 3.1; six tokens had come by then.
    assert found["output_tokens_per_second"] == pytest.approx(6 / 3.1)
    assert found["ttft_seconds"]["p50"] == 1.0
    assert found["ttft_seconds"]["mean"] == pytest.approx(4 / 3)
    assert found["latency_seconds"]["p50"] == 3.0
    assert found["latency_seconds"]["mean"] == pytest.approx(13 / 3)
    # Only the first completion keeps both limits: of four requests, in ten seconds.
    assert (found["slo_share"], found["goodput_requests_per_second"]) == (0.25, 0.1)
    # Three completions with two steps and one accepted token each.
    assert (found["acceptance_length"], found["cached_prompt_share"]) == (1.5, 0.4)
    # Requests that come at their own times press a service until the last one has ended.
    assert summed(*records, level=OPEN)["output_tokens_per_second"] == 0.9


def test_goodput_needs_a_limit() -> None:
    one_token = record(0, 0.0, 1.0)
    found = summed(one_token)
    assert found["slo_share"] is found["goodput_requests_per_second"] is None
    # One limit alone; a completion of one token has no time per token that could be too long.
    assert summed(one_token, objectives=Objectives(slo_tpot_seconds=0.1))["slo_share"] == 1.0


def test_a_run_in_which_everything_failed() -> None:
    records = (failure(0, 0.0, 2.0, "LOADING"), failure(1, 0.0, 1.0, "ConnectionFailedError"))
    found = summed(*records, objectives=Objectives(1.0, 1.0))
    assert found["failed"] == 2
    assert found["errors"] == {"LOADING": 1, "ConnectionFailedError": 1}
    assert found["output_tokens_per_second"] == found["slo_share"] == 0.0
    assert found["ttft_seconds"] is found["tpot_seconds"] is found["latency_seconds"] is None
    assert compare(CLOSED, [Records(records)], [Records(records)])["speedup"] is None


def test_speedup_and_identical_completions() -> None:
    drafted = Records(tuple(record(i, 0.0, 1.0, 2.0) for i in range(4)))
    plain = Records(
        (
            record(0, 0.0, 1.0, 3.0),
            record(1, 0.0, 1.0, 3.0, tokens=(0, 7)),
            record(2, 0.0, 1.0, 3.0),
            failure(3, 0.0, 1.0, "INTERNAL"),
        )
    )
    found = compare(CLOSED, [drafted], [plain])
    # 8 tokens in 2 s against 6 in 3 s.
    assert found["speedup"] == 2.0
    # Of the three both answered, one differs.
    assert found["identical_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("level", "requests"),
    [(LoadLevel("closed", 1.0), 8), (LoadLevel("closed", 16.0), 64), (LoadLevel("open", 4.2), 17)],
)
def test_requests_of_a_run(level: LoadLevel, requests: int) -> None:
    assert LoadSettings().requests_of(level) == requests


def test_gaps_are_those_between_messages_of_one_answer() -> None:
    found = summed(record(0, 0.0, 1.0, 2.0, 4.0), record(1, 0.0, 3.0, 3.5))
    assert found["inter_token_latency_seconds"] == distribution([1.0, 2.0, 0.5])
    assert summed(record(0, 0.0, 1.0))["inter_token_latency_seconds"] is None


def test_learning_is_compared_with_drafting_alone() -> None:
    # While both requests were in flight two tokens came in 2 s, and three in 3.5 s. Of the
    # completions that both had, one differs.
    alone = Records((record(0, 0.0, 1.0, 2.0), record(1, 0.0, 3.0, 4.0)))
    beside = Records(
        (record(0, 0.0, 1.5, 3.5), record(1, 0.0, 3.0, 5.0, tokens=(0, 7))), trainer_seconds=2.5
    )
    learning, drafted, plain = (
        RunKey(*CLOSED, method, 2) for method in ("learning", "drafted", "plain")
    )
    [cost] = costs_of_learning({learning: beside, drafted: alone})
    assert cost["throughput"] == pytest.approx((3 / 3.5) / (2 / 2))
    assert cost["inter_token_latency_p99"] == pytest.approx(2.0)
    assert cost["ttft_p99"] == pytest.approx((3.0 - 0.015) / (3.0 - 0.02))
    assert (cost["identical_share"], cost["trainer_seconds"]) == (0.5, 2.5)
    assert costs_of_learning({learning: beside, plain: alone}) == []


def test_rounds_are_compared_one_by_one_and_summed_up_together() -> None:
    # Two completions of two tokens; drafted in 2, 3 and 8 s, plain in 4, 3 and 4 s.
    seconds: dict[Method, tuple[float, ...]] = {
        "drafted": (2.0, 3.0, 8.0),
        "plain": (4.0, 3.0, 4.0),
    }
    runs = {
        RunKey(*level, method, 2, number): Records(
            (record(0, 0.0, 1.0, ends[number]), record(1, 0.0, 1.0, ends[number]))
        )
        for number in (2, 0, 1)
        for level in (CLOSED, OPEN)
        for method, ends in seconds.items()
    }
    first, second = speedups(runs)
    assert ((first["mode"], first["load"]), (second["mode"], second["load"])) == (CLOSED, OPEN)
    # The ratios are 2, 1 and 1/2; all tokens over all seconds would give 11/13.
    assert [first[name] for name in ("speedup", "lowest", "highest", "rounds")] == [
        1.0,
        0.5,
        2.0,
        3,
    ]
    assert first["identical_share"] == 1.0
    found = summaries(runs, NO_OBJECTIVES)
    assert [((each["mode"], each["load"]), each["method"]) for each in found] == [
        (level, method) for level in (CLOSED, OPEN) for method in seconds
    ]
    assert found[0]["requests"] == 6
    assert (found[0]["duration_seconds"], found[0]["output_tokens"]) == (13.0, 12)


def test_rounds_are_compared_with_themselves() -> None:
    # Request 0 of the second round is another prompt than request 0 of the first.
    ours, theirs = (
        [Records((record(0, 0.0, 1.0, 2.0, tokens=ids),)) for ids in ((1, 2), second)]
        for second in ((3, 4), (3, 5))
    )
    assert compare(CLOSED, ours, theirs)["identical_share"] == 0.5
    # One without a completion defines no ratio.
    found = compare(CLOSED, [ours[0], Records((failure(0, 0.0, 1.0, "INTERNAL"),))], theirs)
    assert (found["speedup"], found["rounds"]) == (1.0, 1)


def test_the_end_of_a_closed_loop_does_not_count() -> None:
    # The second completion of one caller is the last: for six of ten seconds nothing else is in
    # flight.
    found = summed(record(0, 0.0, 2.0), record(1, 0.0, 2.0, 4.0), record(2, 2.0, 3.0, 5.0, 10.0))
    assert found["output_tokens_per_second"] == pytest.approx(4 / 4)
    assert (found["output_tokens"], found["duration_seconds"]) == (6, 10.0)


def test_the_page_says_how_far_apart_rounds_are() -> None:
    ratio = {"mode": "closed", "speedup": 1.5, "identical_share": 1.0}
    one = {**ratio, "load": 1.0, "rounds": 1, "lowest": 1.5, "highest": 1.5}
    several = {**ratio, "load": 2.0, "rounds": 3, "lowest": 0.9, "highest": 1.7}
    page = speedup_table([one, several])
    assert "| 1 at a time | 1.50x | 100.0% |" in page
    assert "| 2 at a time | 1.50x (0.90 to 1.70; 3) | 100.0% |" in page
    assert "medians of the rounds" in rounds_note([one, several])
    assert rounds_note([one]) == ""
