"""The tables of a report, in Markdown, each of the rows of one measurement."""

from collections.abc import Sequence

from blockdraft_bench.common.published import (
    KFLAT,
    KFLAT_SOURCE,
    KFLAT_TOKENS,
    METHODS_SETTING,
    METHODS_SOURCE,
    SPEED_SETTING,
    SPEED_SOURCE,
    TPU_V5P_MEAN,
    TPU_V5P_METHODS,
    TPU_V5P_SPEEDS,
)
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.report.choice import PLAIN, coolest, domain_of
from blockdraft_bench.report.inputs import Results
from blockdraft_bench.report.results import (
    AcceptanceRow,
    DecodeRow,
    KFlatRow,
    LengthRow,
    PeerRow,
    PredictedRow,
    ServeRow,
    SplitRow,
)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; nothing if it has no rows."""
    if not rows:
        return ""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def acceptance_table(rows: Sequence[AcceptanceRow]) -> str:
    """Return τ and acceptance along the block by dataset."""
    headings = ["Dataset", "Domain", "Method", "Drafted", "T", "Answers", "τ"]
    return table(
        [*headings, "Accepted at position 1, 2, …", "Identical to plain"],
        [
            [
                row.dataset,
                domain_of(row.dataset),
                row.method,
                str(row.draft_length),
                f"{row.temperature:g}",
                str(row.samples),
                estimate(row.acceptance_length),
                " ".join(number(share) for share in row.acceptance_per_position),
                f"{row.identical_share:.1%}",
            ]
            for row in rows
        ],
    )


def decode_table(rows: Sequence[DecodeRow]) -> str:
    """Return speeds by dataset and method."""
    headings = ["Dataset", "T", "Method", "Answers", "Tokens/s", "First token, ms", "Speed-up"]
    return table(
        [*headings, "τ", "Identical to plain"],
        [
            [
                row.dataset,
                f"{row.temperature:g}",
                row.method,
                str(row.samples),
                number(row.tokens_per_second, 1),
                number(row.ttft_seconds, 0, 1000.0),
                estimate(row.speedup, "x"),
                estimate(row.acceptance_length),
                f"{row.identical_share:.1%}",
            ]
            for row in rows
        ],
    )


def kflat_table(rows: Sequence[KFlatRow]) -> str:
    """Return a line for each curve, with a column for each step size."""
    sizes = sorted({row.tokens for row in rows})
    curves = dict.fromkeys(row.curve for row in rows)
    lines = []
    for curve in curves:
        device, model, modelled, batch, context = curve
        by_size = {row.tokens: number(row.relative_to_one) for row in rows if row.curve == curve}
        origin = "modelled" if modelled else "measured"
        cells = [device, model, origin, str(batch), str(context)]
        lines.append([*cells, *(by_size.get(size, "") for size in sizes)])
    return table(["Device", "Model", "Times", "Batch", "Context", *map(str, sizes)], lines)


def lengths_table(rows: Sequence[LengthRow]) -> str:
    """Return τ by block size, predicted and measured."""
    return table(
        ["Run", "K", "τ", "From"],
        [
            [
                str(row.run),
                str(row.block_size),
                estimate(row.acceptance_length),
                "prediction" if row.source is None else row.source,
            ]
            for row in rows
        ],
    )


def predictions_table(rows: Sequence[PredictedRow]) -> str:
    """Return the predicted speed-ups: a line for each cost curve, a column for each block size."""
    sizes = sorted({row.block_size for row in rows})
    lines = []
    for curve in dict.fromkeys(row.curve for row in rows):
        run, device, model, modelled, batch, context = curve
        by_size = {row.block_size: number(row.speed_up) for row in rows if row.curve == curve}
        origin = "modelled" if modelled else "measured"
        cells = [str(run), device, model, origin, str(batch), str(context)]
        lines.append([*cells, *(by_size.get(size, "") for size in sizes)])
    headings = ["Run", "Device", "Model", "Costs", "Batch", "Context"]
    return table([*headings, *(f"K = {size}" for size in sizes)], lines)


def serve_table(rows: Sequence[ServeRow]) -> str:
    """Return what each load got."""
    headings = ["Load", "Method", "Requests", "Failed", "Tokens/s", "First token p50, ms"]
    units = {"closed": "at a time", "open": "per second"}
    return table(
        [*headings, "Per token p50, ms", "Latency p50, s", "Latency p99, s", "Goodput, 1/s"],
        [
            [
                f"{row.load:g} {units.get(row.mode, row.mode)}",
                row.method,
                str(row.requests),
                str(row.failed),
                number(row.output_tokens_per_second, 1),
                number(row.ttft_p50_seconds, 0, 1000.0),
                number(row.tpot_p50_seconds, 0, 1000.0),
                number(row.latency_p50_seconds),
                number(row.latency_p99_seconds),
                number(row.goodput_requests_per_second, 3),
            ]
            for row in rows
        ],
    )


def split_table(rows: Sequence[SplitRow]) -> str:
    """Return what three processes cost."""
    return table(
        ["At a time", "One process, tokens/s", "Three processes, tokens/s", "Ratio"],
        [
            [
                str(row.concurrency),
                number(row.one_process_tokens_per_second),
                number(row.three_process_tokens_per_second),
                estimate(row.ratio),
            ]
            for row in rows
        ],
    )


def peers_table(rows: Sequence[PeerRow]) -> str:
    """Return the speeds of other programs."""
    headings = ["Run", "Decoder", "Weights", "Answers", "Tokens/s", "Over our plain"]
    return table(
        [*headings, "Over our drafted", "Identical to our plain"],
        [
            [
                str(row.run),
                f"{row.peer} {row.variant}",
                row.dtype,
                str(row.samples),
                number(row.tokens_per_second, 1),
                estimate(row.ratio_to_plain, "x"),
                estimate(row.ratio_to_drafted, "x"),
                f"{row.identical_share:.1%}",
            ]
            for row in rows
        ],
    )


def published_tables(results: Results) -> str:
    """Return what others published, and ours of the same dataset or method beside it."""
    drafted = [row for row in coolest(results.decode) if row.method != PLAIN]
    methods = list(dict.fromkeys(row.method for row in drafted))
    ours = {(row.dataset, row.method): row for row in drafted}
    headings = ["Dataset", "τ", "Speed-up", "Per token, ms"]
    for method in methods:
        headings += [f"our τ, {method}", f"our speed-up, {method}"]
    lines = []
    for speed in (*TPU_V5P_SPEEDS, TPU_V5P_MEAN):
        cells = [speed.dataset, number(speed.acceptance_length), f"{speed.speedup:.2f}x"]
        cells.append(f"{speed.plain_tpot_ms:.2f} → {speed.tpot_ms:.2f}")
        for method in methods:
            row = ours.get((speed.dataset, method))
            length = Estimate(None, None) if row is None else row.acceptance_length
            speedup = Estimate(None, None) if row is None else row.speedup
            cells += [estimate(length), estimate(speedup, "x")]
        lines.append(cells)
    low, high = KFLAT_TOKENS
    return "\n".join(
        [
            f"{SPEED_SETTING}. Source: {SPEED_SOURCE}.",
            "",
            table(headings, lines),
            f"{METHODS_SETTING}. Source: {METHODS_SOURCE}.",
            "",
            table(
                ["Method", "Drafted", "Mean speed-up"],
                [[m.method, str(m.draft_length), f"{m.speedup:.2f}x"] for m in TPU_V5P_METHODS],
            ),
            f"Verifying {high} tokens over verifying {low}. Source: {KFLAT_SOURCE}.",
            "",
            table(
                ["Device", "Ratio"],
                [
                    [k.device, "–".join(f"{edge:.2f}" for edge in dict.fromkeys(k.ratio))]
                    for k in KFLAT
                ],
            ),
        ]
    )


def number(value: float | None, digits: int = 2, factor: float = 1.0) -> str:
    """Return a number times `factor`, or a dash for None."""
    return "-" if value is None else f"{factor * value:.{digits}f}"


def estimate(value: Estimate, unit: str = "") -> str:
    """Return a number with its 95 % interval, if it has one."""
    if value.value is None:
        return "-"
    interval = "" if value.ci95 is None else " [{:.2f}, {:.2f}]".format(*value.ci95)
    return f"{value.value:.2f}{unit}{interval}"
