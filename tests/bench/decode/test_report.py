"""Decoding speed on paper, from answers made by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench.decode_support import decoded_answer, decoded_set

from blockdraft_bench.decode.divergence import find_divergences
from blockdraft_bench.decode.report import write_report
from blockdraft_bench.decode.speed import MethodSpeed, summarize_method
from blockdraft_bench.report.results import read_decode
from blockdraft_verifier.scheduling.sequence import GenerationRequest

ABOUT: dict[str, Any] = {
    "commit": None,
    "hardware": {"cpu": "A Processor", "cores": 2, "accelerator": None},
    "target": {"name": "tiny", "fingerprint": "0" * 16},
    "drafters": {"dflash": {"fingerprint": "1" * 16, "trained": True, "block_size": 4}},
    "settings": {"dtype": "float32", "draft_policy": "fixed", "max_tokens": 8},
    "recompilations": 0,
}
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
def results() -> list[MethodSpeed]:
    return [
        summarize_method(
            SAMPLES,
            method,
            draft_length=length,
            seed=0,
            divergences=find_divergences(SAMPLES, method, margin),
        )
        for method, length in (("plain", 0), ("dflash", 3))
    ]


def test_table(results: list[MethodSpeed], tmp_path: Path) -> None:
    _, table = write_report(ABOUT, results, tmp_path)
    about, _, headings, _, row, mean, _, divergences = table.splitlines()
    assert "A Processor; commit unknown" in about
    assert "dflash (trained, 1111111111111111, blocks of 4); fixed policy" in about
    assert headings == (
        "| Dataset | T | Answers | plain: TPOT ms | tok/s |"
        " dflash: TPOT ms | tok/s | τ | speed-up | identical |"
    )
    # 4 s over 1.5 s; a resample has one sample twice or both.
    assert row == (
        "| hand | 0 | 2 | 500.0 | 2.0 | 187.5 | 5.3 | 2.67 | 2.67x (2.00–4.00) | 50.0% |"
    )
    assert mean == "| mean | 0 |  |  |  |  |  | 2.67 | 2.67x | 50.0% |"
    assert divergences == (
        "1 of 2 answers differs from plain decoding; the target's margin where they part is at"
        " most 0.000125."
    )
    assert (tmp_path / "decode.md").read_text("utf-8") == table


def test_json(results: list[MethodSpeed], tmp_path: Path) -> None:
    text, _ = write_report(ABOUT, results, tmp_path)
    report = json.loads(text)
    assert {name: report[name] for name in ABOUT} == ABOUT
    plain, drafted = report["results"]
    assert plain["divergences"] == []
    assert drafted["divergences"] == [
        {"sample": "s1", "position": 3, "logit_margin": 0.000125, "temperature": 0.0}
    ]
    assert report["average"][1] == {
        "method": "dflash",
        "temperature": 0.0,
        "speedup": pytest.approx(4 / 1.5),
        "acceptance_length": pytest.approx(8 / 3),
        "identical_share": 0.5,
    }
    # What the pages are made from reads the same.
    rows = read_decode(report)
    assert [(row.method, row.speedup) for row in rows] == [
        (result.method, result.speedup) for result in results
    ]


def test_answers_that_are_all_the_same(results: list[MethodSpeed], tmp_path: Path) -> None:
    same = [replace(result, divergences=()) for result in results]
    _, table = write_report(ABOUT, same, tmp_path)
    assert table.splitlines()[-1] == ("Every answer is that of plain decoding, token for token.")
