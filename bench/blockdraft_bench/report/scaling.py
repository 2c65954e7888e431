"""Predicted scaling in a report: τ against the block size is drawn."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from blockdraft_bench.common.figure import error_bars, powers_of_two
from blockdraft_bench.report.section import Panel, Section
from blockdraft_bench.scaling.report import ScalingReport, markdown


def draw_scaling(reports: Sequence[ScalingReport], axes: Axes) -> None:
    """Draw τ as predicted, with its interval, and as measured."""
    for run, report in enumerate(reports, 1):
        lengths = report.acceptance_lengths
        predicted = [(length.block_size, length.acceptance_length) for length in lengths]
        measured = [
            (length.block_size, found.acceptance_length)
            for length in lengths
            for found in length.measured
        ]
        for points, style, label in ((predicted, "-", "predicted"), (measured, "o", "measured")):
            if points:
                axes.errorbar(
                    [size for size, _ in points],
                    [length.value or 0.0 for _, length in points],
                    yerr=error_bars([length for _, length in points]),
                    fmt=style,
                    capsize=3,
                    color=f"C{(run - 1) % 10}",
                    label=f"{label}, {run}" if len(reports) > 1 else label,
                )
    powers_of_two(axes)
    axes.set_xlabel("block size K")
    axes.set_ylim(bottom=1.0)  # what decoding without drafts gains
    axes.set_ylabel("acceptance length τ")
    axes.legend(fontsize="x-small")


def _panel(reports: Sequence[ScalingReport]) -> Panel:
    return Panel("scaling", "τ against the block size", partial(draw_scaling, reports))


SCALING = Section("Scaling with the block size", ScalingReport, markdown, _panel)
