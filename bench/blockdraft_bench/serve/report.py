"""A service under load on paper: the JSON report, the Markdown tables, the files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from blockdraft_bench.serve.figure import draw_serve
from blockdraft_bench.serve.split import (
    MAX_LOSS_SHARE,
    MIN_STEP_SECONDS,
    Comparison,
    SplitSummary,
    summarize_split,
)
from blockdraft_bench.serve.store import Records, RunKey
from blockdraft_bench.serve.summary import Limits, compare, summarize

LOAD_UNITS = {"closed": "at a time", "open": "per second"}


def split_json(summary: SplitSummary) -> dict[str, Any]:
    """Return the comparison at one concurrency as a JSON object."""
    return {
        **asdict(summary),
        "loss_share": summary.loss_share,
        "requirement": {
            "max_loss_share": MAX_LOSS_SHARE,
            "min_step_seconds": MIN_STEP_SECONDS,
            "met": summary.requirement_met,
            "certain": summary.requirement_certain,
        },
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the tables people read, with what they have to know about them."""
    settings, service, hardware = report["settings"], report["service"], report["hardware"]
    drafter = report["drafter"]
    drafting = "no drafter"
    if drafter is not None:
        trained = "trained" if drafter["trained"] else "untrained"
        drafting = f"{trained} {drafter['method']} drafter ({drafter['fingerprint']})"
    where = f"at {service['address']}" if service["address"] else "started for this run"
    lines = [
        f"Service {where}: target {report['target']['name']} ({report['target']['fingerprint']}), "
        f"{drafting}, draft policy {service['draft_policy'] or 'unknown'}. Answers of at most "
        f"{settings['max_tokens']} tokens at temperature {settings['temperature']:g}; "
        f"{hardware['accelerator'] or hardware['cpu']}, {hardware['cores']} cores, shared by "
        f"service and client where both run here; commit {report['commit'] or 'unknown'}.",
    ]
    if report["results"]:
        lines += ["", *_load_table(report["results"])]
    if report["speedups"]:
        lines += ["", *_speedup_table(report["speedups"])]
    if report["split"]:
        lines += ["", *_split_table(report["split"])]
    return "\n".join(lines) + "\n"


def write_report(
    report: dict[str, Any],
    runs: Mapping[RunKey, Records],
    comparisons: Mapping[int, Sequence[Comparison]],
    limits: Limits,
    folder: Path,
) -> tuple[str, str]:
    """Sum up; write report, tables and figure; return the text of the first two.

    Args:
        report: All but what was measured; its settings have the seed.
        runs: The load, run by run.
        comparisons: Three processes against one, by concurrency.
        limits: What counts as a good answer, and the price.
        folder: Where to.
    """
    results = [summarize(key.load, key.method, runs[key], limits) for key in runs]
    speedups = [
        compare(key.load, records, runs[plain])
        for key, records in runs.items()
        if key.method == "drafted" and (plain := replace(key, method="plain")) in runs
    ]
    seed = report["settings"]["seed"]
    summaries = [summarize_split(n, groups, seed) for n, groups in comparisons.items()]
    split = [summary for summary in summaries if summary is not None]
    report = {
        **report,
        "results": [asdict(result) for result in results],
        "speedups": [asdict(speedup) for speedup in speedups],
        "split": [split_json(summary) for summary in split],
    }
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    tables = markdown(report)
    (folder / "serve.json").write_text(text, encoding="utf-8")
    (folder / "serve.md").write_text(tables, encoding="utf-8")
    draw_serve(results, split, folder / "serve.png")
    return text, tables


def _load_table(results: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| Load | Method | Requests | Failed | Tokens/s | First token p50 / p95 / p99 s | "
        "Per token p50 / p95 / p99 ms | Latency p50 / p95 / p99 s | In SLO | Goodput 1/s | τ | "
        "Cached prompt | Per 10⁶ tokens |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        reasons = ", ".join(f"{count} {name}" for name, count in result["errors"].items())
        lines.append(
            _row(
                f"{result['load']:g} {LOAD_UNITS[result['mode']]}",
                result["method"],
                str(result["requests"]),
                f"{result['failed']}" + (f" ({reasons})" if reasons else ""),
                _number(result["output_tokens_per_second"], 1),
                _percentiles(result["ttft_seconds"], 1.0, 2),
                _percentiles(result["tpot_seconds"], 1000.0, 0),
                _percentiles(result["latency_seconds"], 1.0, 2),
                _share(result["slo_share"]),
                _number(result["goodput_requests_per_second"], 3),
                _number(result["acceptance_length"], 2),
                _share(result["cached_prompt_share"]),
                _number(result["cost_per_million_tokens"], 2),
            )
        )
    return lines


def _speedup_table(speedups: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| Load | Drafted / plain tokens/s | Identical answers |", "|---|---|---|"]
    for item in speedups:
        speedup = item["speedup"]
        lines.append(
            _row(
                f"{item['load']:g} {LOAD_UNITS[item['mode']]}",
                "-" if speedup is None else f"{speedup:.2f}x",
                _share(item["identical_share"]),
            )
        )
    return lines


def _split_table(split: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| At a time | Groups | One process tokens/s | Three processes tokens/s | Ratio | "
        "95 % interval | Loss | Step one / three ms | One: verify + draft + transport + rest | "
        "Three: verify + draft + transport + rest | Idle side's cores one / three | "
        f"Identical | At most {MAX_LOSS_SHARE:.0%} lost |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for item in split:
        one, three = item["one_process"], item["three_processes"]
        lines.append(
            _row(
                str(item["concurrency"]),
                str(item["groups"]),
                _number(one["tokens_per_second"], 2),
                _number(three["tokens_per_second"], 2),
                _number(item["ratio"], 3),
                "–".join(_number(edge, 3) for edge in item["ratio_ci95"] or [None]),
                _share(item["loss_share"]),
                " / ".join(f"{1000 * side['step_seconds']:.1f}" for side in (one, three)),
                _parts(one),
                _parts(three),
                " / ".join(_number(side["idle_cores"], 3) for side in (one, three)),
                _share(item["identical_share"]),
                _verdict(**item["requirement"]),
            )
        )
    return lines


def _parts(side: dict[str, float]) -> str:
    """Return where a step's time goes, in milliseconds."""
    parts = [side[f"{name}_seconds"] for name in ("verify", "draft", "transport")]
    return " + ".join(f"{1000 * part:.1f}" for part in (*parts, side["step_seconds"] - sum(parts)))


def _verdict(*, met: bool | None, certain: bool, **limits: float) -> str:
    if met is None:
        return "steps too short to ask"
    return ("yes" if met else "no") + ("" if certain else ", within the noise")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _percentiles(value: dict[str, float] | None, factor: float, digits: int) -> str:
    if value is None:
        return "-"
    return " / ".join(f"{factor * value[name]:.{digits}f}" for name in ("p50", "p95", "p99"))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
