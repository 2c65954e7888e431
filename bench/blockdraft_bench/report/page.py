"""The page of a report: where its numbers come from, its figures, its tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blockdraft_bench.common import published
from blockdraft_bench.report.figure import draw_report
from blockdraft_bench.report.inputs import Results, Source
from blockdraft_bench.report.panels import Panel
from blockdraft_bench.report.tables import (
    acceptance_table,
    decode_table,
    kflat_table,
    lengths_table,
    peers_table,
    predictions_table,
    published_tables,
    serve_table,
    split_table,
    table,
)

NAME = "report"


def report_json(
    made_by: dict[str, Any], sources: Sequence[Source], results: Results, panels: Sequence[Panel]
) -> dict[str, Any]:
    """Return the merged summary.

    Args:
        made_by: Command and commit of the report itself.
        sources: The files.
        results: Their rows.
        panels: The panels that were drawn.
    """
    return {
        "benchmark": NAME,
        **made_by,
        "sources": [source.describe() for source in sources],
        "panels": [panel.name for panel in panels],
        "results": asdict(results),
        "published": {
            "speed_setting": published.SPEED_SETTING,
            "speed_source": published.SPEED_SOURCE,
            "tpu_v5p_speeds": [asdict(speed) for speed in published.TPU_V5P_SPEEDS],
            "tpu_v5p_mean": asdict(published.TPU_V5P_MEAN),
            "methods_setting": published.METHODS_SETTING,
            "methods_source": published.METHODS_SOURCE,
            "tpu_v5p_methods": [asdict(method) for method in published.TPU_V5P_METHODS],
            "kflat_tokens": published.KFLAT_TOKENS,
            "kflat_source": published.KFLAT_SOURCE,
            "kflat": [asdict(row) for row in published.KFLAT],
        },
    }


def markdown(sources: Sequence[Source], results: Results, panels: Sequence[Panel]) -> str:
    """Return the page."""
    parts = ["# Benchmarks", _sources_table(sources)]
    if panels:
        parts.append(f"![{', '.join(panel.title for panel in panels)}]({NAME}.png)")
    tables = {
        "Decoding speed": decode_table(results.decode),
        "Acceptance": acceptance_table(results.acceptance),
        "Cost of verifying K tokens, relative to one": kflat_table(results.kflat),
        "Acceptance length against block size": lengths_table(results.lengths),
        "Predicted speed-up against block size": predictions_table(results.predictions),
        "A service under load": serve_table(results.serve),
        "Three processes against one": split_table(results.split),
        "The same prompts elsewhere": peers_table(results.peers),
    }
    for title, text in tables.items():
        if text:
            parts += [f"## {title}", text]
    if results.sentences:
        parts += ["## In words", "\n".join(f"- {sentence}" for sentence in results.sentences)]
    parts += [
        "## Published numbers",
        "Of other targets on other hardware with other drafters: a scale for the numbers above, "
        "not their baseline.",
        published_tables(results),
    ]
    if panels:
        parts += ["## Single figures"]
        parts.append("\n".join(f"- [{p.title}]({NAME}-{p.name}.png)" for p in panels))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def write_report(
    made_by: dict[str, Any],
    sources: Sequence[Source],
    results: Results,
    panels: Sequence[Panel],
    folder: Path,
) -> tuple[str, str]:
    """Write summary, page and figures; return the text of the first two."""
    report = report_json(made_by, sources, results, panels)
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    page = markdown(sources, results, panels)
    (folder / f"{NAME}.json").write_text(text, encoding="utf-8")
    (folder / f"{NAME}.md").write_text(page, encoding="utf-8")
    if panels:
        draw_report(panels, results, folder)
    return text, page


def _sources_table(sources: Sequence[Source]) -> str:
    rows = []
    for source in sources:
        about = source.describe()
        hardware, target = about.get("hardware") or {}, about.get("target") or {}
        rows.append(
            [
                source.benchmark,
                str(target.get("name") or target.get("fingerprint") or "unknown"),
                str(hardware.get("accelerator") or hardware.get("cpu") or "unknown"),
                str(about.get("commit") or "unknown"),
                f"`{about.get('command') or 'unknown'}`",
            ]
        )
    return table(["Measurement", "Target", "Hardware", "Commit", "Command"], rows)
