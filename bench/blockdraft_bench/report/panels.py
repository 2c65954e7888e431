"""The panels of a report, each drawn into axes of its own."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes

from blockdraft_bench.common.datasets import DOMAINS
from blockdraft_bench.common.figure import BAR_SPACE, error_bars
from blockdraft_bench.common.published import SPEED_MARK, TPU_V5P_SPEEDS
from blockdraft_bench.peers.answers import BLOCKDRAFT
from blockdraft_bench.report.choice import (
    OTHER,
    PLAIN,
    coolest,
    decay_by_domain,
    simplest_curves,
)
from blockdraft_bench.report.inputs import Results

LINE_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        name: Of its file.
        title: Above it.
        draw: Draws it.
    """

    name: str
    title: str
    draw: Callable[[Axes, Results], None]


def panels_of(results: Results) -> list[Panel]:
    """Return the panels there are results for."""
    drafted = [row for row in coolest(results.decode) if row.method != PLAIN]
    loads = [row for row in results.serve if row.latency_p50_seconds is not None]
    known: tuple[tuple[object, Panel], ...] = (
        (drafted, Panel("speedup", "Speed-up over plain decoding", draw_speedups)),
        (
            decay_by_domain(coolest(results.acceptance)),
            Panel("decay", "Acceptance along the block", draw_decay),
        ),
        (results.kflat, Panel("kflat", "Cost of verifying K tokens", draw_kflat)),
        (results.lengths, Panel("scaling", "τ against the block size", draw_scaling)),
        (loads, Panel("load", "Throughput against latency", draw_load)),
        (results.peers, Panel("peers", "The same prompts elsewhere", draw_peers)),
    )
    return [panel for rows, panel in known if rows]


def draw_speedups(axes: Axes, results: Results) -> None:
    """Draw a bar for each dataset and method, and what was published for DFlash."""
    rows = [row for row in coolest(results.decode) if row.method != PLAIN]
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    width = BAR_SPACE / max(1, len(methods))
    for index, method in enumerate(methods):
        chosen = [row for row in rows if row.method == method]
        shift = (index - (len(methods) - 1) / 2) * width
        axes.bar(
            [datasets.index(row.dataset) + shift for row in chosen],
            [row.speedup.value or 0.0 for row in chosen],
            width,
            yerr=error_bars([row.speedup for row in chosen]),
            capsize=3,
            label=method,
        )
    published = [speed for speed in TPU_V5P_SPEEDS if speed.dataset in datasets]
    if published:
        axes.plot(
            [datasets.index(speed.dataset) for speed in published],
            [speed.speedup for speed in published],
            linestyle="none",
            marker="D",
            markerfacecolor="none",
            color="black",
            label=f"published: {SPEED_MARK}",
        )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(datasets)), datasets, rotation=45, ha="right")
    temperature = min(row.temperature for row in rows)
    axes.set_ylabel(f"speed-up at T = {temperature:g}")
    axes.margins(y=0.2)  # for the legend
    axes.legend(fontsize="x-small")


def draw_decay(axes: Axes, results: Results) -> None:
    """Draw a curve for each domain: a style for each method and draft length."""
    decays = decay_by_domain(coolest(results.acceptance))
    order = [*DOMAINS, OTHER]
    drafts = list(dict.fromkeys((decay.method, decay.draft_length) for decay in decays))
    for decay in decays:
        draft = (decay.method, decay.draft_length)
        axes.plot(
            range(1, decay.draft_length + 1),
            decay.per_position,
            LINE_STYLES[drafts.index(draft) % len(LINE_STYLES)],
            marker=".",
            color=f"C{order.index(decay.domain)}",
            label=f"{decay.domain}, {decay.method}, {decay.draft_length} drafted",
        )
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("share of verifications that accept it")
    axes.legend(fontsize="x-small")


def draw_kflat(axes: Axes, results: Results) -> None:
    """Draw a curve for each device and model: solid if measured, dash-dotted if modelled."""
    for curve in simplest_curves(results.kflat):
        first = curve[0]
        origin = "modelled" if first.modelled else "measured"
        axes.plot(
            [row.tokens for row in curve],
            [row.relative_to_one for row in curve],
            "-." if first.modelled else "-",
            marker="o",
            markerfacecolor="none" if first.modelled else None,
            label=f"{first.device}, {first.model}, {origin}",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens of the step, K")
    axes.set_ylabel("time relative to one token a sequence")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


def draw_scaling(axes: Axes, results: Results) -> None:
    """Draw τ as predicted, with its interval, and as measured."""
    runs = list(dict.fromkeys(row.run for row in results.lengths))
    for run in runs:
        rows = sorted(
            (row for row in results.lengths if row.run == run), key=lambda row: row.block_size
        )
        number = f", {run}" if len(runs) > 1 else ""
        for measured, style, label in ((False, "-", "predicted"), (True, "o", "measured")):
            chosen = [row for row in rows if (row.source is not None) == measured]
            if chosen:
                axes.errorbar(
                    [row.block_size for row in chosen],
                    [row.acceptance_length.value or 0.0 for row in chosen],
                    yerr=error_bars([row.acceptance_length for row in chosen]),
                    fmt=style,
                    capsize=3,
                    color=f"C{(run - 1) % 10}",
                    label=f"{label}{number}",
                )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("block size K")
    axes.set_ylim(bottom=1.0)  # what decoding without drafts gains
    axes.set_ylabel("acceptance length τ")
    axes.legend(fontsize="x-small")


def draw_load(axes: Axes, results: Results) -> None:
    """Draw a curve for each kind of load and method, a point for each load."""
    for mode, method in dict.fromkeys((row.mode, row.method) for row in results.serve):
        points = sorted(
            (row.load, row.latency_p50_seconds, row.output_tokens_per_second)
            for row in results.serve
            if (row.mode, row.method) == (mode, method) and row.latency_p50_seconds is not None
        )
        axes.plot(
            [latency for _, latency, _ in points],
            [speed for _, _, speed in points],
            "-" if mode == "closed" else "--",
            marker="o",
            label=f"{method}, {mode} loop",
        )
        for load, latency, speed in points:
            axes.annotate(f"{load:g}", (latency, speed), (4, 4), textcoords="offset points")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("latency p50, seconds")
    axes.set_ylabel("output tokens per second")
    axes.legend(fontsize="x-small")


def draw_peers(axes: Axes, results: Results) -> None:
    """Draw a bar for the speed of each program over that of our plain decoding."""
    rows = results.peers
    runs = {row.run for row in rows}
    places = range(len(rows))
    axes.barh(
        places,
        [row.ratio_to_plain.value or 0.0 for row in rows],
        xerr=error_bars([row.ratio_to_plain for row in rows]),
        capsize=3,
        color=["C0" if row.peer == BLOCKDRAFT else "C1" for row in rows],
    )
    names = [f"{row.peer}\n{row.variant}, {row.dtype}" for row in rows]
    if len(runs) > 1:
        names = [f"{row.run}: {name}" for row, name in zip(rows, names, strict=True)]
    axes.set_yticks(places, names, fontsize="small")
    axes.invert_yaxis()
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("speed over that of blockdraft plain")
