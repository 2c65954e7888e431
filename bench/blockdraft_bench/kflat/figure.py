"""The K-flat curves as a picture: time relative to one token, and what the roofline allows."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.common.figure import curve_style, panels, powers_of_two
from blockdraft_bench.kflat.report import KFlatReport, StepTime, steps_by_curve


def draw(report: KFlatReport) -> Figure:
    """Return a figure with a panel for each batch and context."""
    curves = steps_by_curve(report.results)
    places = sorted({(curve.batch, curve.context_tokens) for curve in curves})
    sources = list(dict.fromkeys((curve.device, curve.model) for curve in curves))
    figure, axes = panels(
        len(places), columns=len({context for _, context in places}), sharex=True, sharey=True
    )
    for (batch, context), panel in zip(places, axes, strict=True):
        panel.set_title(f"batch {batch}, context {context}")
        for curve, steps in curves.items():
            if (curve.batch, curve.context_tokens) == (batch, context):
                _draw_curve(panel, steps, f"C{sources.index((curve.device, curve.model)) % 10}")
        powers_of_two(panel)
        panel.set_yscale("log")
        panel.legend(fontsize="x-small")
    figure.supxlabel("tokens of the step, K")
    figure.supylabel("time relative to one token a sequence")
    return figure


def _draw_curve(axes: Axes, steps: Sequence[StepTime], color: str) -> None:
    first, tokens = steps[0], [step.tokens for step in steps]
    axes.errorbar(
        tokens,
        [step.relative_to_one for step in steps],
        yerr=_error_bars(steps),
        capsize=2,
        label=f"{first.marked_device}, {first.model}",
        **curve_style(first.modelled, color),
    )
    roofline = [step.roofline_seconds / first.roofline_seconds for step in steps]
    axes.plot(tokens, roofline, "--", color=color, linewidth=1, alpha=0.6, label="its roofline")


def _error_bars(steps: Sequence[StepTime]) -> list[list[float]] | None:
    """Return the distances to the quartiles, relative to the first step; none of modelled times."""
    below, above = [], []
    for step in steps:
        if step.seconds_quartiles is None:
            return None
        low, high = step.seconds_quartiles
        below.append((step.seconds - low) / steps[0].seconds)
        above.append((high - step.seconds) / steps[0].seconds)
    return [below, above]
