"""Peers on paper."""

import json
from typing import Any

from tests.bench.report.made_up import peers

from blockdraft_bench.common.record import from_json, to_json
from blockdraft_bench.peers.report import PeersReport, markdown


def read(content: dict[str, Any]) -> PeersReport:
    return from_json(PeersReport, json.dumps(content))


def test_json_there_and_back() -> None:
    report = read(peers())
    assert from_json(PeersReport, to_json(report)) == report


def test_page() -> None:
    page = markdown(read(peers()))
    assert "llama.cpp v0.5.0. 4 prompts" in page
    assert "Medians of 7 rounds, quartiles in parentheses." in page
    cells = "20.0 (19.0 to 21.0) | 1.00x (0.90 to 1.10) | 1.50x (1.40 to 1.60) | 250 ms | 50.0% |"
    assert f"| blockdraft plain | bfloat16 | {cells}" in page


def test_no_speed_is_a_dash() -> None:
    content = peers()
    content["results"][0]["tokens_per_second"] = None
    assert "| blockdraft plain | bfloat16 | - | 1.00x" in markdown(read(content))
