"""Predicted scaling as a picture: τ and speed-up over the block size."""

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.common.figure import (
    curve_style,
    error_bars,
    panels,
    plain_level,
    powers_of_two,
)
from blockdraft_bench.scaling.decay import Decay
from blockdraft_bench.scaling.report import ScalingReport

# Other drafters for comparison: so much better or worse at the first position.
SHIFTS = (-0.1, 0.0, 0.1, 0.2)


def draw(report: ScalingReport) -> Figure:
    """Return a panel of τ and one of the speed-up."""
    figure, (left, right) = panels(2)
    _draw_lengths(left, report)
    _draw_speeds(right, report)
    for axes in (left, right):
        powers_of_two(axes)
        axes.set_xlabel("block size K, anchor included")
        axes.legend(fontsize="x-small")
    return figure


def _draw_lengths(axes: Axes, report: ScalingReport) -> None:
    """Draw τ at several acceptances with the same decay, and what was measured."""
    fitted = Decay(report.fit.acceptance.value or 0.0, report.fit.decay.value or 0.0)
    sizes = range(2, report.acceptance_lengths[-1].block_size + 1)
    for shift in SHIFTS:
        decay = replace(fitted, first=fitted.first + shift)
        if not 0.0 < decay.first <= 1.0:
            continue
        axes.plot(
            sizes,
            [decay.acceptance_length(size) for size in sizes],
            "--" if shift else "-",
            label=f"a = {decay.first:.2f}, d = {decay.rate:.2f}{'' if shift else ' (fitted)'}",
        )
    for cut_short, face in ((False, "black"), (True, "none")):
        measured = [
            (length.block_size, found.acceptance_length)
            for length in report.acceptance_lengths
            for found in length.measured
            if found.cut_short is cut_short
        ]
        if measured:
            axes.errorbar(
                [size for size, _ in measured],
                [length.value or 0.0 for _, length in measured],
                yerr=error_bars([length for _, length in measured]),
                fmt="o",
                color="black",
                markerfacecolor=face,
                capsize=3,
                label="measured, cut short" if cut_short else "measured",
            )
    axes.set_ylabel("acceptance length τ, tokens per verification")


def _draw_speeds(axes: Axes, report: ScalingReport) -> None:
    """Draw the speed-up on each cost curve."""
    for index, curve in enumerate(report.results):
        rows = curve.predictions
        known = {row.block_size: row.speed_up for row in rows if row.speed_up is not None}
        axes.plot(
            list(known),
            list(known.values()),
            label=f"{curve.marked_device}, {curve.model}, context {curve.context_tokens}",
            **curve_style(curve.modelled, f"C{index % 10}"),
        )
    plain_level(axes)
    axes.set_ylabel("predicted speed-up over plain decoding")
