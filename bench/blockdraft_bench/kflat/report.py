"""The K-flat curves on paper: the JSON report and the Markdown table."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blockdraft_bench.kflat.curve import Curve
from blockdraft_bench.kflat.figure import draw_kflat

NAME = "kflat"
MODELLED_NOTE = (
    "Modelled curves are XLA's model of the compiled greedy step on all chips, one layer times "
    "their number, with attention by hand; nothing ran. What fits, `blockdraft compile` tells."
)


def report_json(
    environment: dict[str, Any], settings: dict[str, Any], curves: Sequence[Curve]
) -> dict[str, Any]:
    """Return the whole report.

    Args:
        environment: What `describe_environment` found.
        settings: How it was measured and modelled, the tolerance included.
        curves: One for each device, model, batch and context.
    """
    return {
        "benchmark": NAME,
        **environment,
        **settings,
        "modelled_note": MODELLED_NOTE if any(curve.modelled for curve in curves) else None,
        "curves": [_curve_json(curve, settings["tolerance"]) for curve in curves],
        "results": [row for curve in curves for row in _point_rows(curve)],
    }


def markdown(report: dict[str, Any], curves: Sequence[Curve]) -> str:
    """Return the table people read, with what they have to know about it."""
    sizes = sorted({point.tokens for curve in curves for point in curve.points})
    headings = ["Device", "Model", "Batch", "Context", "K*", "Free until", "First, ms"]
    headings += [str(size) for size in sizes]
    lines = [_caption(report), "", _row(headings), _row(["---"] * len(headings))]
    for curve in curves:
        relative = {point.tokens: curve.relative(point) for point in curve.points}
        cells = [
            _device(curve),
            curve.model,
            str(curve.batch),
            str(curve.context_tokens),
            f"{curve.knee_tokens:.0f}",
            str(curve.free_until_tokens(report["tolerance"])),
            f"{1e3 * curve.points[0].seconds:.3g}",
            *(f"{relative[size]:.2f}" if size in relative else "" for size in sizes),
        ]
        lines.append(_row(cells))
    lines.append("")
    for curve in curves:
        where = f"{_device(curve)}, {curve.model}, batch {curve.batch}, {curve.context_tokens} "
        lines.append(f"- {where}context tokens: {curve.explain(report['tolerance'])}")
    if report["modelled_note"]:
        lines += ["", report["modelled_note"]]
    return "\n".join(lines) + "\n"


def write_report(report: dict[str, Any], curves: Sequence[Curve], folder: Path) -> tuple[str, str]:
    """Write report, table and figure; return the text of the first two."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table = markdown(report, curves)
    (folder / f"{NAME}.json").write_text(text, encoding="utf-8")
    (folder / f"{NAME}.md").write_text(table, encoding="utf-8")
    draw_kflat(curves, folder / f"{NAME}.png")
    return text, table


def _caption(report: dict[str, Any]) -> str:
    target, hardware = report["target"], report["hardware"]
    return (
        f"Time of a verification step over K tokens, relative to one token a sequence. Target "
        f"{target['name']} ({target['fingerprint']}), medians of {report['runs']} runs on "
        f"{hardware['accelerator'] or hardware['cpu']}; free means at most "
        f"{report['tolerance']:.0%} more; commit {report['commit'] or 'unknown'}."
    )


def _curve_json(curve: Curve, tolerance: float) -> dict[str, Any]:
    return {
        **_identity(curve),
        "bytes_per_weight": curve.bytes_per_weight,
        "roofline": asdict(curve.roofline),
        "knee_tokens": curve.knee_tokens,
        "free_until_tokens": curve.free_until_tokens(tolerance),
        "explanation": curve.explain(tolerance),
    }


def _point_rows(curve: Curve) -> list[dict[str, Any]]:
    return [
        {
            **_identity(curve),
            "tokens": point.tokens,
            "seconds": point.seconds,
            "seconds_quartiles": point.seconds_quartiles,
            "relative_to_one": curve.relative(point),
            "flops": point.flops,
            "bytes": point.bytes,
            "compiled_flops": point.compiled_flops,
            "compiled_bytes": point.compiled_bytes,
            "roofline_seconds": curve.roofline_seconds(point),
            "seconds_over_roofline": point.seconds / curve.roofline_seconds(point),
        }
        for point in curve.points
    ]


def _identity(curve: Curve) -> dict[str, Any]:
    return {
        "device": curve.device,
        "model": curve.model,
        "modelled": curve.modelled,
        "batch": curve.batch,
        "context_tokens": curve.context_tokens,
    }


def _device(curve: Curve) -> str:
    return f"{curve.device} (modelled)" if curve.modelled else curve.device


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
