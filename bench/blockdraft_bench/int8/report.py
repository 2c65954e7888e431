"""The error of int8 weights on paper: the JSON report and the Markdown table."""

import json
from pathlib import Path
from typing import Any

from blockdraft_bench.int8.logit_error import LogitError
from blockdraft_bench.int8.measure import Int8Result

NAME = "int8"


def report_json(
    environment: dict[str, Any], settings: dict[str, Any], result: Int8Result
) -> dict[str, Any]:
    """Return the whole report.

    Args:
        environment: What `describe_environment` found.
        settings: How it was measured.
        result: What came out.
    """
    return {
        "benchmark": NAME,
        **environment,
        **settings,
        "float_weight_bytes": result.float_bytes,
        "int8_weight_bytes": result.int8_bytes,
        "overall": {"answers": sum(result.answers.values()), **_error_json(result.overall)},
        "results": [
            {"dataset": dataset, "answers": result.answers[dataset], **_error_json(error)}
            for dataset, error in result.errors.items()
        ],
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the table people read, with what they have to know about it."""
    target, hardware = report["target"], report["hardware"]
    before, after = report["float_weight_bytes"], report["int8_weight_bytes"]
    lines = [
        f"Int8 weights against {report['dtype']} ones over the target's own greedy answers. Target "
        f"{target['name']} ({target['fingerprint']}), answers of at most {report['max_tokens']} "
        f"tokens; {hardware['accelerator'] or hardware['cpu']}; commit "
        f"{report['commit'] or 'unknown'}. Weights: {before / 1e6:.1f} MB before, "
        f"{after / 1e6:.1f} MB after.",
        "",
        "| Dataset | Answers | Positions | Relative RMS error | Largest error | Same choice | "
        "Mean KL, nats |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in [*report["results"], {"dataset": "all", **report["overall"]}]:
        cells = [
            row["dataset"],
            str(row["answers"]),
            str(row["positions"]),
            f"{row['relative_rms_error']:.2%}",
            f"{row['max_error']:.2f}",
            f"{row['same_choice_share']:.1%}",
            f"{row['mean_kl_nats']:.2g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_report(report: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Write report and table; return the text of both."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table = markdown(report)
    (folder / f"{NAME}.json").write_text(text, encoding="utf-8")
    (folder / f"{NAME}.md").write_text(table, encoding="utf-8")
    return text, table


def _error_json(error: LogitError) -> dict[str, Any]:
    return {
        "positions": error.positions,
        "relative_rms_error": error.relative_rms,
        "max_error": error.max_error,
        "same_choice_share": error.same_choice_share,
        "mean_kl_nats": error.mean_kl_nats,
    }
