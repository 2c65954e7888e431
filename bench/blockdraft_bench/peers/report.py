"""Peers on paper: the JSON report and the Markdown table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft_bench.acceptance.statistics import Estimate
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.peers.answers import BLOCKDRAFT
from blockdraft_bench.peers.figure import draw_peers
from blockdraft_bench.peers.speeds import PeerResult


def results_json(
    results: Sequence[PeerResult], skipped: Mapping[str, str], prompt_sets: Sequence[PromptSet]
) -> list[dict[str, Any]]:
    """Return the results as JSON objects, then the peers that did not take part, with the reason.

    Args:
        results: One for each decoder.
        skipped: Why each of the others did not take part.
        prompt_sets: Prompts, in the order of the answers.
    """
    names = [(group.dataset, p.sample_id) for group in prompt_sets for p in group.prompts]
    return [
        *(_result_json(result, names) for result in results),
        *({"peer": peer, "skipped": reason} for peer, reason in skipped.items()),
    ]


def _result_json(result: PeerResult, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "peer": result.variant.peer,
        "variant": result.variant.name,
        "dtype": result.variant.dtype,
        "samples": result.samples,
        "tokens": result.tokens,
        "tokens_per_second": result.tokens_per_second,
        "ttft_seconds": result.ttft_seconds,
        **_estimate("ratio_to_plain", result.ratio_to_plain),
        **_estimate("ratio_to_drafted", result.ratio_to_drafted),
        "identical_share": result.identical_share,
        "first_divergences": [
            {"dataset": names[index][0], "sample": names[index][1], "token": place}
            for index, place in result.first_divergences
        ],
    }


def _estimate(name: str, estimate: Estimate) -> dict[str, Any]:
    return {
        name: estimate.value,
        f"{name}_ci95": None if estimate.ci95 is None else list(estimate.ci95),
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the table people read, with what they have to know about it."""
    target, drafter, hardware = report["target"], report["drafter"], report["hardware"]
    lines = [
        f"Target {target['name']} ({target['fingerprint']}), {drafter['method']} drafter "
        f"({drafter['fingerprint']}), blocks of {report['block_size']}; greedy, answers of at most "
        f"{report['max_tokens']} tokens, one at a time; "
        f"{hardware['accelerator'] or hardware['cpu']}, {report['threads']} threads; "
        f"commit {report['commit'] or 'unknown'}.",
        "",
        "| Decoder | Weights | Answers | Tokens/s | Over our plain | Over our drafted | "
        "First token | Identical to our plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    absent = [row for row in report["results"] if "skipped" in row]
    for row in report["results"]:
        if row in absent:
            continue
        cells = [
            f"{row['peer']} {row['variant']}",
            row["dtype"],
            str(row["samples"]),
            "-" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.1f}",
            _ratio(row, "ratio_to_plain"),
            _ratio(row, "ratio_to_drafted"),
            f"{row['ttft_seconds'] * 1000:.0f} ms",
            f"{row['identical_share']:.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Brackets hold 95 % intervals."]
    if any(row["peer"] == "llama.cpp" and row not in absent for row in report["results"]):
        lines += [
            "",
            "llama.cpp computes with the quantized weights of the file, the others with the same "
            "weights dequantized: it reads fewer bytes a token and rounds differently.",
        ]
    lines += [line for row in absent for line in ("", f"{row['peer']}: {row['skipped']}.")]
    return "\n".join(lines) + "\n"


def write_report(
    report: dict[str, Any], results: Sequence[PeerResult], folder: Path
) -> tuple[str, str]:
    """Write report, table and figure; return the text of the first two."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table = markdown(report)
    (folder / "peers.json").write_text(text, encoding="utf-8")
    (folder / "peers.md").write_text(table, encoding="utf-8")
    ours = [result.variant for result in results if result.variant.peer == BLOCKDRAFT]
    draw_peers(results, ours, folder / "peers.png")
    return text, table


def _ratio(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    interval = row[f"{name}_ci95"]
    edges = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    return f"{row[name]:.2f}x{edges}"
