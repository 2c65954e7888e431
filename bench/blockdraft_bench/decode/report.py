"""Decoding speed on paper: the JSON report and the Markdown table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blockdraft_bench.acceptance.statistics import Estimate
from blockdraft_bench.common.timed_answers import PLAIN
from blockdraft_bench.decode.figure import draw_speedups
from blockdraft_bench.decode.speed import MethodAverage, MethodSpeed, average

NAME = "decode"


def write_report(
    about: Mapping[str, Any], results: Sequence[MethodSpeed], folder: Path
) -> tuple[str, str]:
    """Write report, table and figure; return the text of the first two.

    Args:
        about: Environment, target, drafters, settings and recompilations.
        results: One for each dataset, temperature and method, in this order.
        folder: Where to.
    """
    averages = average(results)
    report = {
        "benchmark": NAME,
        **about,
        "results": [result_json(result) for result in results],
        "average": [asdict(mean) for mean in averages],
    }
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table = markdown(about, results, averages)
    (folder / f"{NAME}.json").write_text(text, encoding="utf-8")
    (folder / f"{NAME}.md").write_text(table, encoding="utf-8")
    draw_speedups(results, folder / f"{NAME}.png")
    return text, table


def result_json(result: MethodSpeed) -> dict[str, Any]:
    """Return one result as a JSON object; null where nothing was measured."""
    return {
        "dataset": result.dataset,
        "method": result.method,
        "temperature": result.temperature,
        "samples": result.samples,
        "tokens": result.tokens,
        "tpot_seconds": result.tpot_seconds,
        "tpot_seconds_quartiles": result.tpot_seconds_quartiles,
        "ttft_seconds": result.ttft_seconds,
        "tokens_per_second": result.tokens_per_second,
        "speedup": result.speedup.value,
        "speedup_ci95": result.speedup.ci95,
        "acceptance_length": result.acceptance_length.value,
        "acceptance_length_ci95": result.acceptance_length.ci95,
        "acceptance_per_position": result.acceptance_per_position,
        "mean_draft_length": result.mean_draft_length,
        "identical_share": result.identical_share,
        "divergences": [
            {
                "sample": divergence.sample_id,
                "position": divergence.position,
                "logit_margin": divergence.logit_margin,
                "temperature": divergence.temperature,
            }
            for divergence in result.divergences
        ],
    }


def markdown(
    about: Mapping[str, Any], results: Sequence[MethodSpeed], averages: Sequence[MethodAverage]
) -> str:
    """Return the table people read, with what they have to know about it."""
    drafting = [m for m in dict.fromkeys(r.method for r in results) if m != PLAIN]
    headings = ["Dataset", "T", "Answers", "plain: TPOT ms", "tok/s"]
    for method in drafting:
        headings += [f"{method}: TPOT ms", "tok/s", "τ", "speed-up", "identical"]
    lines = [_caption(about), "", _row(headings), _row(["---"] * len(headings))]
    for dataset, temperature in dict.fromkeys((r.dataset, r.temperature) for r in results):
        by_method = {
            r.method: r for r in results if (r.dataset, r.temperature) == (dataset, temperature)
        }
        plain = by_method[PLAIN]
        cells = [dataset, f"{temperature:g}", str(plain.samples), *_speed_cells(plain)]
        for method in drafting:
            result = by_method[method]
            cells += [
                *_speed_cells(result),
                _number(result.acceptance_length.value, 2),
                _speedup(result.speedup),
                f"{result.identical_share:.1%}",
            ]
        lines.append(_row(cells))
    for temperature in dict.fromkeys(mean.temperature for mean in averages):
        means = {mean.method: mean for mean in averages if mean.temperature == temperature}
        cells = ["mean", f"{temperature:g}", "", "", ""]
        for method in drafting:
            mean = means[method]
            cells += [
                "",
                "",
                _number(mean.acceptance_length, 2),
                _speedup(Estimate(mean.speedup, None)),
                f"{mean.identical_share:.1%}",
            ]
        lines.append(_row(cells))
    return "\n".join([*lines, "", _divergence_line(results)]) + "\n"


def _caption(about: Mapping[str, Any]) -> str:
    target, settings, hardware = about["target"], about["settings"], about["hardware"]
    drafters = [
        f"{method} ({'trained' if drafter['trained'] else 'untrained'}, {drafter['fingerprint']}, "
        f"blocks of {drafter['block_size']})"
        for method, drafter in about["drafters"].items()
    ]
    return (
        f"Target {target['name']} ({target['fingerprint']}), {settings['dtype']}; drafters: "
        f"{', '.join(drafters) or 'none'}; {settings['draft_policy']} policy; one answer at a "
        f"time, of at most {settings['max_tokens']} tokens; "
        f"{hardware['accelerator'] or hardware['cpu']}; commit {about['commit'] or 'unknown'}."
    )


def _divergence_line(results: Sequence[MethodSpeed]) -> str:
    margins = [d.logit_margin for result in results for d in result.divergences]
    drafted = sum(result.samples for result in results if result.method != PLAIN)
    if not drafted:
        return "No draft method was measured."
    if not margins:
        return "Every answer is that of plain decoding, token for token."
    return (
        f"{len(margins)} of {drafted} answers {'differs' if len(margins) == 1 else 'differ'} from "
        "plain decoding; the target's margin where they part is at most "
        f"{max(margins):.3g}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _speed_cells(result: MethodSpeed) -> list[str]:
    milliseconds = None if result.tpot_seconds is None else 1e3 * result.tpot_seconds
    return [_number(milliseconds, 1), _number(result.tokens_per_second, 1)]


def _speedup(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    interval = "" if estimate.ci95 is None else " ({:.2f}–{:.2f})".format(*estimate.ci95)
    return f"{estimate.value:.2f}x{interval}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
