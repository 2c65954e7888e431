"""A service under load on paper."""

from collections.abc import Sequence

from blockdraft_bench.result import Row, number, share, table
from blockdraft_bench.serve.record import LoadLevel


def load_table(rows: Sequence[Row]) -> str:
    """Return a row for each level of load and method."""
    return table(
        [
            *("Load", "Method", "Requests", "Failed", "Tokens/s"),
            *("First token p50 / p95 / p99 s", "Per token p50 / p95 / p99 ms"),
            "Between messages p50 / p95 / p99 ms",
            *("Latency p50 / p95 / p99 s", "In SLO", "Goodput 1/s", "τ"),
            *("Cached prompt", "Per 10⁶ tokens"),
        ],
        (
            [
                _level(row),
                row["method"],
                row["requests"],
                _failures(row),
                number(row["output_tokens_per_second"], 1),
                _percentiles(row["ttft_seconds"], 2),
                _percentiles(row["tpot_seconds"], 0, 1e3),
                _percentiles(row["gap_seconds"], 0, 1e3),
                _percentiles(row["latency_seconds"], 2),
                share(row["slo_share"]),
                number(row["goodput_requests_per_second"], 3),
                row["acceptance_length"],
                share(row["cached_prompt_share"]),
                row["cost_per_million_tokens"],
            ]
            for row in rows
        ),
    )


def speedup_table(rows: Sequence[Row]) -> str:
    """Return drafted over plain for each level where both ran."""
    return table(
        ["Load", "Drafted / plain tokens/s", "Identical answers"],
        ([_level(row), _ratio(row), share(row["identical_share"])] for row in rows),
    )


def rounds_note(rows: Sequence[Row]) -> str:
    """Say what is in parentheses, if there are any."""
    if all(row["rounds"] < 2 for row in rows):
        return ""
    return (
        "Ratios are medians of the rounds; parentheses hold the lowest, the highest and their "
        "number."
    )


def learning_table(rows: Sequence[Row]) -> str:
    """Return what learning costs at each level where that was measured."""
    return table(
        [
            *("Load", "Learning / without: tokens/s", "Gap p99", "First token p99"),
            *("Identical answers", "Trainer's processor s"),
        ],
        (
            [
                _level(row),
                number(row["throughput"], 3, unit="x"),
                number(row["gap_p99"], unit="x"),
                number(row["first_token_p99"], unit="x"),
                share(row["identical_share"]),
                number(row["trainer_seconds"], 1),
            ]
            for row in rows
        ),
    )


def _level(row: Row) -> str:
    return str(LoadLevel(row["mode"], row["load"]))


def _ratio(row: Row) -> str:
    """Return the median of the rounds, and between which they lie where there are several."""
    text = number(row["speedup"], unit="x")
    if row["rounds"] < 2:
        return text
    return f"{text} ({number(row['lowest'])} to {number(row['highest'])}; {row['rounds']})"


def _failures(row: Row) -> str:
    reasons = ", ".join(f"{count} {name}" for name, count in row["errors"].items())
    return f"{row['failed']} ({reasons})" if reasons else str(row["failed"])


def _percentiles(value: Row | None, digits: int, factor: float = 1.0) -> str:
    if value is None:
        return "-"
    points = (value["p50"], value["p95"], value["p99"])
    return " / ".join(number(point, digits, factor=factor) for point in points)
