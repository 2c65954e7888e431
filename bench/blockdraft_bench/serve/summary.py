"""The arithmetic of a load, and its tables: throughput, goodput, drafted against plain.

Pure functions of the requests' records, so that other limits need no new run.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from blockdraft_bench.result import ResultRow, number, share, table
from blockdraft_bench.serve.record import LoadLevel, Method, Records, RunKey
from blockdraft_bench.serve.settings import Objectives
from blockdraft_bench.statistics import identical_share, mean, median, percentiles

# The runs of a method at a level of load, one of each round.
Rounds = Sequence[Records]


def by_level(runs: Mapping[RunKey, Records]) -> dict[LoadLevel, dict[Method, list[Records]]]:
    """Return the runs of each level and method, round by round, in the order of the first round."""
    levels: dict[LoadLevel, dict[Method, list[Records]]] = {}
    for key, records in sorted(runs.items(), key=lambda run: run[0].round):
        levels.setdefault(key.level, {}).setdefault(key.method, []).append(records)
    return levels


def summaries(runs: Mapping[RunKey, Records], objectives: Objectives) -> list[ResultRow]:
    """Sum up every method at every level."""
    return [
        summarize(level, method, rounds, objectives)
        for level, methods in by_level(runs).items()
        for method, rounds in methods.items()
    ]


def summarize(
    level: LoadLevel, method: Method, rounds: Rounds, objectives: Objectives
) -> ResultRow:
    """Sum up one method at one level, at least one request in each round.

    In a closed loop, tokens per second count only while the full number of requests is in flight:
    at the end, completions of unequal speed leave fewer. In an open loop, they count all tokens,
    from when the first request was due to the end of the last. Latencies count from when a request
    was due.
    """
    records = [record for run in rounds for record in run.requests]
    good = [record for record in records if record.succeeded]
    duration = sum(map(_duration, rounds))
    rate = sum(_tokens_while_full(level, run) for run in rounds) / sum(
        _full_seconds(level, run) for run in rounds
    )
    met = sum(map(objectives.met_by, records))
    steps = sum(record.verification_steps for record in good)
    accepted = sum(record.accepted_tokens for record in good)
    prompt_tokens = sum(record.prompt_tokens for record in good)
    cached = sum(record.cached_prompt_tokens for record in good)
    return {
        "mode": level.mode,
        "load": level.value,
        "method": method,
        "requests": len(records),
        "failed": len(records) - len(good),
        "errors": dict(Counter(record.error for record in records if record.error is not None)),
        "duration_seconds": duration,
        "output_tokens": sum(len(record.token_ids) for record in good),
        "output_tokens_per_second": rate,
        "ttft_seconds": distribution([record.ttft for record in good]),
        # After the first message, averaged over each completion.
        "tpot_seconds": distribution([r.tpot for r in good if r.tpot is not None]),
        # Between neighbouring messages of a completion.
        "inter_token_latency_seconds": distribution(
            [latency for record in good for latency in record.inter_token_latencies]
        ),
        "latency_seconds": distribution([record.latency for record in good]),
        "slo_share": met / len(records) if objectives.has_slo else None,
        "goodput_requests_per_second": met / duration if objectives.has_slo else None,
        "acceptance_length": 1 + accepted / steps if steps else None,
        "cached_prompt_share": cached / prompt_tokens if prompt_tokens else None,
    }


def distribution(seconds: Sequence[float]) -> ResultRow | None:
    """Return percentiles, linear between neighbours, and mean; None of nothing."""
    if not seconds:
        return None
    p50, p95, p99 = percentiles(seconds, (50, 95, 99))
    return {"p50": p50, "p95": p95, "p99": p99, "mean": mean(seconds)}


def speedups(runs: Mapping[RunKey, Records]) -> list[ResultRow]:
    """Compare drafted with plain decoding wherever both ran."""
    return [
        compare(level, methods["drafted"], methods["plain"])
        for level, methods in by_level(runs).items()
        if methods.keys() >= {"drafted", "plain"}
    ]


def compare(level: LoadLevel, drafted: Rounds, plain: Rounds) -> ResultRow:
    """Compare both methods at one level of load, round by round.

    In an open loop both follow the arrivals, and the ratio says little below saturation.
    """
    ratios = [
        fast / slow
        for ours, theirs in zip(drafted, plain, strict=True)
        if (fast := tokens_per_second(level, ours)) and (slow := tokens_per_second(level, theirs))
    ]
    return {
        "mode": level.mode,
        "load": level.value,
        "speedup": median(ratios),
        "identical_share": _identical(drafted, plain),
        "rounds": len(ratios),
        "lowest": min(ratios, default=None),
        "highest": max(ratios, default=None),
    }


def costs_of_learning(runs: Mapping[RunKey, Records]) -> list[ResultRow]:
    """Compare learning with drafting beside a stopped trainer, wherever both ran."""
    return [
        cost_of_learning(level, methods["learning"], methods["drafted"])
        for level, methods in by_level(runs).items()
        if methods.keys() >= {"learning", "drafted"}
    ]


def cost_of_learning(level: LoadLevel, learning: Rounds, drafted: Rounds) -> ResultRow:
    """Compare a service that learns with one that does not; ratios are medians over the rounds."""
    pairs = [
        (
            summarize(level, "learning", [ours], Objectives()),
            summarize(level, "drafted", [theirs], Objectives()),
        )
        for ours, theirs in zip(learning, drafted, strict=True)
    ]

    def ratio(of: Callable[[ResultRow], float | None]) -> float | None:
        measured = [(of(beside), of(alone)) for beside, alone in pairs]
        return median(
            ours / theirs if ours is not None and theirs else None for ours, theirs in measured
        )

    return {
        "mode": level.mode,
        "load": level.value,
        "throughput": ratio(lambda run: run["output_tokens_per_second"]),
        "inter_token_latency_p99": ratio(lambda run: _p99(run["inter_token_latency_seconds"])),
        "ttft_p99": ratio(lambda run: _p99(run["ttft_seconds"])),
        "identical_share": _identical(learning, drafted),
        # Processor time that the trainer got.
        "trainer_seconds": sum(run.trainer_seconds or 0.0 for run in learning),
    }


def _p99(of: ResultRow | None) -> float | None:
    return of["p99"] if of else None


def _start(run: Records) -> float:
    return min(record.scheduled for record in run.requests)


def _duration(run: Records) -> float:
    return max(record.ended for record in run.requests) - _start(run)


def _full_seconds(level: LoadLevel, run: Records) -> float:
    """Return the seconds for which a run kept its whole load."""
    if level.mode == "open":
        return _duration(run)
    # Whenever a completion ends, another request is sent, until there are no more.
    ends = sorted(record.ended for record in run.requests)
    return ends[max(0, len(ends) - int(level.value))] - _start(run)


def _tokens_while_full(level: LoadLevel, run: Records) -> int:
    end = _start(run) + _full_seconds(level, run)
    return sum(
        tokens
        for record in run.requests
        if record.succeeded
        for at, tokens in zip(record.chunk_times, record.chunk_tokens, strict=True)
        if at <= end
    )


def tokens_per_second(level: LoadLevel, run: Records) -> float:
    """Return the speed of a run while it kept its whole load."""
    return _tokens_while_full(level, run) / _full_seconds(level, run)


def _identical(rounds: Rounds, baseline: Rounds) -> float | None:
    """Return the share of equal completions; None if no request was answered twice."""
    pairs = []
    for ours, theirs in zip(rounds, baseline, strict=True):
        by_request = {r.request: r.token_ids for r in theirs.requests if r.succeeded}
        pairs += [
            (record.token_ids, by_request[record.request])
            for record in ours.requests
            if record.succeeded and record.request in by_request
        ]
    return identical_share(pairs) if pairs else None


def load_table(rows: Sequence[ResultRow]) -> str:
    """Return a row for each level of load and method."""
    return table(
        [
            *("Load", "Method", "Requests", "Failed", "Tokens/s"),
            *("TTFT p50 / p95 / p99 s", "TPOT p50 / p95 / p99 ms", "ITL p50 / p95 / p99 ms"),
            *("Latency p50 / p95 / p99 s", "In SLO", "Goodput 1/s", "τ"),
            "Cached prompt",
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
                _percentiles(row["inter_token_latency_seconds"], 0, 1e3),
                _percentiles(row["latency_seconds"], 2),
                share(row["slo_share"]),
                number(row["goodput_requests_per_second"], 3),
                row["acceptance_length"],
                share(row["cached_prompt_share"]),
            ]
            for row in rows
        ),
    )


def speedup_table(rows: Sequence[ResultRow]) -> str:
    """Return the table of drafted over plain, for each level where both ran."""
    return table(
        ["Load", "Drafted / plain tokens/s", "Identical completions"],
        ([_level(row), _ratio(row), share(row["identical_share"])] for row in rows),
    )


def rounds_note(rows: Sequence[ResultRow]) -> str:
    """Explain the parentheses, if there are any."""
    if all(row["rounds"] < 2 for row in rows):
        return ""
    return (
        "Ratios are medians of the rounds; parentheses hold the lowest, the highest and their "
        "number."
    )


def learning_table(rows: Sequence[ResultRow]) -> str:
    """Return the table of the cost of learning, for each level where it was measured."""
    return table(
        [
            *("Load", "Learning / without: tokens/s", "ITL p99", "TTFT p99"),
            *("Identical completions", "Trainer's processor s"),
        ],
        (
            [
                _level(row),
                number(row["throughput"], 3, unit="x"),
                number(row["inter_token_latency_p99"], unit="x"),
                number(row["ttft_p99"], unit="x"),
                share(row["identical_share"]),
                number(row["trainer_seconds"], 1),
            ]
            for row in rows
        ),
    )


def _level(row: ResultRow) -> str:
    return str(LoadLevel(row["mode"], row["load"]))


def _ratio(row: ResultRow) -> str:
    """Return the median of the rounds, and their range where there are several."""
    text = number(row["speedup"], unit="x")
    if row["rounds"] < 2:
        return text
    return f"{text} ({number(row['lowest'])} to {number(row['highest'])}; {row['rounds']})"


def _failures(row: ResultRow) -> str:
    reasons = ", ".join(f"{count} {name}" for name, count in row["errors"].items())
    return f"{row['failed']} ({reasons})" if reasons else str(row["failed"])


def _percentiles(value: ResultRow | None, digits: int, factor: float = 1.0) -> str:
    if value is None:
        return "-"
    points = (value["p50"], value["p95"], value["p99"])
    return " / ".join(number(point, digits, factor=factor) for point in points)
