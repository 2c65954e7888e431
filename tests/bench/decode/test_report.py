"""Decoding speed on paper, from answers made by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.bench.decode_support import decoded_answer, decoded_set

from blockdraft_bench.common.provenance import Hardware, Target
from blockdraft_bench.common.record import from_json, to_json
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.decode.divergence import find_divergences
from blockdraft_bench.decode.report import DecodeFlags, DecodeReport, MethodDrafter, markdown
from blockdraft_bench.decode.speed import average, summarize_method
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Plain: 4 tokens in 2 s. Drafted: 4 tokens in 1 s, and in 0.5 s with another fourth token.
PLAIN = decoded_answer(0.5, 2.0, (1, 2, 3, 4, 5), ((0, 0),) * 4)
SAMPLES = decoded_set(
    {"plain": PLAIN, "dflash": decoded_answer(0.7, 1.0, (1, 2, 3, 4, 5), ((3, 2), (1, 0)))},
    {"plain": PLAIN, "dflash": decoded_answer(0.7, 0.5, (1, 2, 3, 9, 5), ((3, 3),))},
)


def margin(request: GenerationRequest, answer: Sequence[int]) -> float:
    assert (request.request_id, answer) == ("s1", (1, 2, 3))
    return 0.000125


@pytest.fixture
def report() -> DecodeReport:
    results = [
        summarize_method(
            SAMPLES,
            method,
            draft_length=length,
            seed=0,
            divergences=find_divergences(SAMPLES, method, margin),
        )
        for method, length in (("plain", 0), ("dflash", 3))
    ]
    return DecodeReport(
        command="blockdraft bench decode",
        commit=None,
        versions={"jax": "1"},
        hardware=Hardware("A Processor", 2, None),
        target=Target("0" * 16, "tiny"),
        drafters={"dflash": MethodDrafter("1" * 16, True, 4, 3)},
        settings=DecodeFlags(("hand",), 2, 8, 16, (0.0,), "fixed", 0, "float32", 1),
        recompilations=0,
        results=tuple(results),
        average=tuple(average([SAMPLES], ["plain", "dflash"], seed=0)),
    )


def test_table(report: DecodeReport) -> None:
    about, _, headings, _, row, mean, _, divergences = markdown(report).splitlines()
    assert "A Processor; commit unknown" in about
    assert "dflash (trained, 1111111111111111, blocks of 4); fixed policy" in about
    assert headings == (
        "| Dataset | T | Answers | plain: TTFT ms | TPOT ms | tok/s |"
        " dflash: TTFT ms | TPOT ms | tok/s | τ | speed-up | identical |"
    )
    # 4 s over 1.5 s; two answers are too few for an interval.
    assert row == "| hand | 0 | 2 | 500 | 500.0 | 2.0 | 700 | 187.5 | 5.3 | 2.67 | 2.67x | 50.0% |"
    assert mean == "| mean | 0 |  |  |  |  |  |  |  | 2.67 | 2.67x | 50.0% |"
    assert divergences == (
        "1 of 2 answers differs from plain decoding; the target's margin where they part is at"
        " most 0.000125."
    )


def test_intervals_say_what_they_rest_on(report: DecodeReport) -> None:
    plain, drafted = report.results
    sure = replace(drafted, speedup=Estimate(8 / 3, (2.0, 4.0), 8))
    page = markdown(replace(report, results=(plain, sure)))
    assert "| 2.67x [2.00, 4.00; n = 8] |" in page


def test_json(report: DecodeReport) -> None:
    text = to_json(report)
    assert from_json(DecodeReport, text) == report
    fields = json.loads(text)
    plain, drafted = fields["results"]
    assert (drafted["speedup"], drafted["speedup_answers"]) == (pytest.approx(4 / 1.5), 2)
    assert plain["divergences"] == []
    assert drafted["divergences"] == [
        {"sample": "s1", "position": 3, "logit_margin": 0.000125, "temperature": 0.0}
    ]
    assert fields["average"][1] == {
        "method": "dflash",
        "temperature": 0.0,
        "speedup": pytest.approx(4 / 1.5),
        "speedup_ci95": None,
        "speedup_answers": 2,
        "acceptance_length": pytest.approx(8 / 3),
        "acceptance_length_ci95": None,
        "acceptance_length_answers": 2,
        "identical_share": 0.5,
    }


def test_answers_that_are_all_the_same(report: DecodeReport) -> None:
    same = tuple(replace(result, divergences=()) for result in report.results)
    page = markdown(replace(report, results=same))
    assert page.splitlines()[-1] == "Every answer is that of plain decoding, token for token."
