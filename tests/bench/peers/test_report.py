"""Peers on paper: who took part, who did not, and files of earlier versions."""

import json
from typing import Any

import pytest

from blockdraft_bench.common.record import from_json, to_json
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.peers.report import PeersReport, markdown


def row(peer: str) -> dict[str, Any]:
    return {
        "peer": peer, "variant": "plain", "dtype": "float32", "samples": 9, "tokens": 90,
        "tokens_per_second": 12.5, "ttft_seconds": 0.25,
        "ratio_to_plain": 1.5, "ratio_to_plain_ci95": [1.25, 2.0],
        "ratio_to_drafted": None, "ratio_to_drafted_ci95": None,
        "identical_share": 1.0, "first_divergences": [],
    }  # fmt: skip


# As it was written when the skipped stood among the results.
EARLIER: dict[str, Any] = {
    "benchmark": "peers", "command": "c", "commit": "abc", "versions": {},
    "hardware": {"cpu": "a processor", "cores": 2, "accelerator": None},
    "target": {"name": "tiny", "fingerprint": "0123456789abcdef"},
    "drafter": {"method": "dflash", "fingerprint": "f", "trained": True},
    "block_size": 8, "draft_policy": "adaptive", "assistant": None, "max_tokens": 13,
    "max_prompt_tokens": 64, "threads": 2, "seed": 0, "peer_versions": {"torch": None},
    "results": [row("blockdraft"), {"peer": "transformers", "skipped": "not installed"}],
}  # fmt: skip


@pytest.fixture
def report() -> PeersReport:
    return from_json(PeersReport, json.dumps(EARLIER))


def test_reads_files_of_earlier_versions(report: PeersReport) -> None:
    [measured] = report.results
    assert measured.ratio_to_plain == Estimate(1.5, (1.25, 2.0), 9)
    assert report.skipped == {"transformers": "not installed"}
    assert from_json(PeersReport, to_json(report)) == report


def test_page(report: PeersReport) -> None:
    page = markdown(report)
    assert "| blockdraft plain | float32 | 9 | 12.5 | 1.50x [1.25, 2.00; n = 9] | - | 250" in page
    assert "\ntransformers: not installed.\n" in page
    assert "llama.cpp" not in page


def test_a_note_explains_the_weights_of_llama_cpp() -> None:
    fields = {**EARLIER, "results": [row("llama.cpp")]}
    page = markdown(from_json(PeersReport, json.dumps(fields)))
    assert "llama.cpp computes with the quantized weights of the file" in page
