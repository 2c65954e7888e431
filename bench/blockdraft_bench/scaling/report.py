"""Predicted scaling on paper: the JSON report and the Markdown tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blockdraft_bench.scaling.decay import DecayFit
from blockdraft_bench.scaling.figure import draw_scaling
from blockdraft_bench.scaling.inputs import ReachCounts
from blockdraft_bench.scaling.predict import PredictedLength, PredictedSpeed

NAME = "scaling"


def report_json(
    environment: dict[str, Any],
    settings: dict[str, Any],
    fitted: ReachCounts,
    fit: DecayFit,
    lengths: Sequence[PredictedLength],
    speeds: Sequence[PredictedSpeed],
) -> dict[str, Any]:
    """Return the whole report.

    Args:
        environment: What `describe_environment` found.
        settings: Files and costs the predictions are made from.
        fitted: The measured acceptance.
        fit: The decay fitted to it.
        lengths: τ by block size.
        speeds: Speed-ups by cost curve.
    """
    return {
        "benchmark": NAME,
        **environment,
        **settings,
        "target": {"fingerprint": fitted.target},
        "drafter": {"fingerprint": fitted.drafter},
        "block_size": fitted.block_size,
        "fit": _fit_json(fit),
        "acceptance_lengths": [_length_json(length) for length in lengths],
        "results": [_speed_json(speed) for speed in speeds],
    }


def markdown(
    report: dict[str, Any], lengths: Sequence[PredictedLength], speeds: Sequence[PredictedSpeed]
) -> str:
    """Return the tables people read, with what they have to know about them."""
    lines = [_caption(report), "", _row(["K", "τ predicted", "95 % interval", "τ measured"])]
    lines.append(_row(["---"] * 4))
    for length in lengths:
        cells = [
            f"{length.block_size}{' (extrapolated)' if length.extrapolated else ''}",
            f"{length.value:.2f}",
            _interval(length.ci95),
            "; ".join(
                f"{found.value:.2f}{' (cut short)' if found.cut_short else ''}"
                for found in length.measured
            ),
        ]
        lines.append(_row(cells))
    sizes = [size for size, _ in speeds[0].speed_ups]
    headings = ["Device", "Model", "Context", *(f"K = {size}" for size in sizes), "Best K"]
    lines += ["", _costs(report), "", _row(headings), _row(["---"] * len(headings))]
    for speed in speeds:
        cells = [
            _device(speed),
            speed.curve.model,
            str(speed.curve.context_tokens),
            *("-" if value is None else f"{value:.2f}x" for _, value in speed.speed_ups),
            str(speed.best_block_size or "-"),
        ]
        lines.append(_row(cells))
    lines.append("")
    for speed in speeds:
        where = f"{_device(speed)}, {speed.curve.model}, {speed.curve.context_tokens} context"
        lines.append(f"- {where} tokens: {speed.exchange.conclusion()}")
    return "\n".join(lines) + "\n"


def write_report(
    report: dict[str, Any],
    fit: DecayFit,
    lengths: Sequence[PredictedLength],
    speeds: Sequence[PredictedSpeed],
    folder: Path,
) -> tuple[str, str]:
    """Write report, tables and figure; return the text of the first two."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    tables = markdown(report, lengths, speeds)
    (folder / f"{NAME}.json").write_text(text, encoding="utf-8")
    (folder / f"{NAME}.md").write_text(tables, encoding="utf-8")
    draw_scaling(fit, lengths, speeds, folder / f"{NAME}.png")
    return text, tables


def _fit_json(fit: DecayFit) -> dict[str, Any]:
    first, rate = fit.intervals()
    reached = fit.reached
    conditional = fit.decay.conditional(len(reached) - 1)
    return {
        "acceptance": fit.decay.first,
        "acceptance_ci95": first,
        "decay": fit.decay.rate,
        "decay_ci95": rate,
        "verifications": reached[0],
        "deviance": fit.deviance,
        "degrees_of_freedom": fit.degrees_of_freedom,
        "largest_error_of_acceptance_length": fit.largest_error,
        "per_position": [
            {
                "position": position + 1,
                "reached": reached[position],
                "accepted": reached[position + 1],
                "conditional_acceptance": (
                    reached[position + 1] / reached[position] if reached[position] else None
                ),
                "fitted": float(conditional[position]),
            }
            for position in range(len(reached) - 1)
        ],
    }


def _length_json(length: PredictedLength) -> dict[str, Any]:
    return {
        "block_size": length.block_size,
        "acceptance_length": length.value,
        "acceptance_length_ci95": length.ci95,
        "extrapolated": length.extrapolated,
        "measured": [
            {
                "source": found.source,
                "acceptance_length": found.value,
                "acceptance_length_ci95": found.ci95,
                "cut_short": found.cut_short,
            }
            for found in length.measured
        ],
    }


def _speed_json(speed: PredictedSpeed) -> dict[str, Any]:
    curve, exchange = speed.curve, speed.exchange
    return {
        "device": curve.device,
        "model": curve.model,
        "modelled": curve.modelled,
        "batch": curve.batch,
        "context_tokens": curve.context_tokens,
        "predictions": [
            {
                "block_size": size,
                "verify_seconds": curve.verify_seconds(size),
                "speed_up": value,
            }
            for size, value in speed.speed_ups
        ],
        "best_block_size": speed.best_block_size,
        "exchange": {
            "block_size": exchange.block_size,
            "point": asdict(exchange.point),
            "doubling": asdict(exchange.doubling),
            "points_for_acceptance_length": exchange.points_for_length,
            "points_for_speed_up": exchange.points_for_speed_up,
        },
        "conclusion": exchange.conclusion(),
    }


def _caption(report: dict[str, Any]) -> str:
    fit = report["fit"]
    return (
        f"Fitted on {fit['verifications']} verifications of blocks of {report['block_size']} "
        f"({', '.join(report['datasets'] or ['all datasets'])}, temperature "
        f"{report['temperature']:g}): acceptance a = {fit['acceptance']:.3f} "
        f"({_interval(fit['acceptance_ci95'], 3)}) at the first position, times d = "
        f"{fit['decay']:.3f} ({_interval(fit['decay_ci95'], 3)}) for each further one. Deviance "
        f"{fit['deviance']:.1f} on {fit['degrees_of_freedom']} degrees of freedom; τ is off by at "
        f"most {fit['largest_error_of_acceptance_length']:.2f} up to there."
    )


def _costs(report: dict[str, Any]) -> str:
    draft = report["draft_seconds"]
    drafting = "drafting free (no --draft-seconds)" if draft is None else f"{1e3 * draft:g} ms"
    return (
        f"Predicted speed-up over plain decoding, batch {report['batch']}; draft {drafting}, "
        f"overhead {1e3 * report['overhead_seconds']:g} ms a step."
    )


def _device(speed: PredictedSpeed) -> str:
    return f"{speed.curve.device}{' (modelled)' if speed.curve.modelled else ''}"


def _interval(interval: Sequence[float] | None, digits: int = 2) -> str:
    if interval is None:
        return "no interval"
    return "–".join(f"{edge:.{digits}f}" for edge in interval)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
