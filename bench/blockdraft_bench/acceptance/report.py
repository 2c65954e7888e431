"""Acceptance on paper: the JSON report and the Markdown table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockdraft_bench.acceptance.figure import draw_acceptance
from blockdraft_bench.acceptance.measure import AcceptanceSettings
from blockdraft_bench.acceptance.statistics import DatasetAcceptance, Estimate
from blockdraft_bench.engine.decoding import InProcessDecoder


def report_json(
    environment: dict[str, Any],
    decoder: InProcessDecoder,
    settings: AcceptanceSettings,
    max_prompt_tokens: int,
    results: Sequence[DatasetAcceptance],
) -> dict[str, Any]:
    """Return the whole report.

    Args:
        environment: What `describe_environment` found.
        decoder: Target and drafter.
        settings: How answers were decoded.
        max_prompt_tokens: Where prompts were cut.
        results: One for each dataset and temperature.
    """
    drafter = decoder.drafter
    return {
        "benchmark": "acceptance",
        **environment,
        "target": {
            "name": decoder.target.config.name,
            "fingerprint": decoder.target.fingerprint,
        },
        "drafter": {
            "method": drafter.method,
            "fingerprint": drafter.fingerprint,
            "trained": drafter.trained,
        },
        "block_size": drafter.block_size,
        "draft_length": settings.draft_length,
        "max_tokens": settings.max_tokens,
        "max_prompt_tokens": max_prompt_tokens,
        "seed": settings.seed,
        "results": [result_json(result) for result in results],
    }


def result_json(result: DatasetAcceptance) -> dict[str, Any]:
    """Return one result as a JSON object; null where nothing was measured."""
    fields: dict[str, Any] = {
        "dataset": result.dataset,
        "temperature": result.temperature,
        "samples": result.samples,
        "tokens": result.tokens,
        "verifications": result.verifications,
        "steps": result.steps,
        "acceptance_length": result.acceptance_length.value,
        "acceptance_length_ci95": _interval(result.acceptance_length),
    }
    for name, estimates in (
        ("acceptance_per_position", result.per_position),
        ("conditional_acceptance_per_position", result.conditional),
        ("acceptance_decay", result.decay),
    ):
        fields[name] = [estimate.value for estimate in estimates]
        fields[f"{name}_ci95"] = [_interval(estimate) for estimate in estimates]
    return {
        **fields,
        "identical_share": result.identical_share,
        "reach_counts": result.reach_counts,
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the table people read, with what they have to know about it."""
    target, drafter, hardware = report["target"], report["drafter"], report["hardware"]
    trained = "trained" if drafter["trained"] else "untrained"
    lines = [
        f"Target {target['name']} ({target['fingerprint']}), {trained} {drafter['method']} drafter "
        f"({drafter['fingerprint']}), blocks of {report['block_size']}, {report['draft_length']} "
        f"tokens drafted; answers of at most {report['max_tokens']} tokens; "
        f"{hardware['accelerator'] or hardware['cpu']}; commit {report['commit'] or 'unknown'}.",
        "",
        "| Dataset | T | Answers | Verifications | τ | 95 % interval | "
        "Accepted at position 1, 2, … | Identical to plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in report["results"]:
        cells = [
            result["dataset"],
            f"{result['temperature']:g}",
            str(result["samples"]),
            str(result["steps"]),
            _number(result["acceptance_length"]),
            "–".join(_number(edge) for edge in result["acceptance_length_ci95"] or [None]),
            " ".join(_number(share) for share in result["acceptance_per_position"]),
            f"{result['identical_share']:.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_report(
    report: dict[str, Any], results: Sequence[DatasetAcceptance], folder: Path
) -> tuple[str, str]:
    """Write report, table and figure; return the text of the first two."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table = markdown(report)
    (folder / "acceptance.json").write_text(text, encoding="utf-8")
    (folder / "acceptance.md").write_text(table, encoding="utf-8")
    draw_acceptance(results, folder / "acceptance.png")
    return text, table


def _interval(estimate: Estimate) -> list[float] | None:
    return None if estimate.ci95 is None else list(estimate.ci95)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
