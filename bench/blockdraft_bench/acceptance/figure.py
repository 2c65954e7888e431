"""Acceptance as a picture: τ by dataset, and how acceptance falls along the block."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.acceptance.report import AcceptanceReport
from blockdraft_bench.common.figure import LINE_STYLES, grouped_bars, panels, plain_level


def draw(report: AcceptanceReport) -> Figure:
    """Draw both panels."""
    datasets = list(dict.fromkeys(row.dataset for row in report.results))
    temperatures = list(dict.fromkeys(row.temperature for row in report.results))
    figure, [bars, curves] = panels(2, size=(3 + 0.55 * len(datasets), 4.5))
    series = {
        f"T = {temperature:g}": {
            row.dataset: row.acceptance_length
            for row in report.results
            if row.temperature == temperature
        }
        for temperature in temperatures
    }
    grouped_bars(bars, datasets, series)
    plain_level(bars)
    bars.set_ylabel("acceptance length τ, tokens per verification")
    bars.legend()
    _draw_positions(curves, report, datasets, temperatures)
    return figure


def _draw_positions(
    axes: Axes, report: AcceptanceReport, datasets: list[str], temperatures: list[float]
) -> None:
    """Draw a curve for each result: a colour for each dataset, a style for each temperature."""
    for row in report.results:
        shares = [position.value for position in row.acceptance_per_position]
        known = [(k, share) for k, share in enumerate(shares, 1) if share is not None]
        axes.plot(
            [k for k, _ in known],
            [share for _, share in known],
            LINE_STYLES[temperatures.index(row.temperature) % len(LINE_STYLES)],
            marker=".",
            color=f"C{datasets.index(row.dataset) % 10}",
            label=f"{row.dataset}, T = {row.temperature:g}",
        )
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("share of verifications that accept it")
    axes.legend(fontsize="small")
