"""The K-flat curves as a picture: time relative to one token, and what the roofline allows."""

from collections.abc import Sequence
from pathlib import Path

# Figures made without pyplot draw with Agg, on any machine and without global state.
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.kflat.curve import Curve


def draw_kflat(curves: Sequence[Curve], path: Path) -> None:
    """Write a PNG with a panel for each batch and context.

    Args:
        curves: At least one.
        path: Where to.
    """
    batches = sorted({curve.batch for curve in curves})
    contexts = sorted({curve.context_tokens for curve in curves})
    sources = list(dict.fromkeys((curve.device, curve.model) for curve in curves))
    size = (1.5 + 5.5 * len(contexts), 1 + 4 * len(batches))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(batches), len(contexts), squeeze=False, sharex=True, sharey=True)
    for row, batch in enumerate(batches):
        for column, context in enumerate(contexts):
            axes = panels[row][column]
            axes.set_title(f"batch {batch}, context {context}")
            for curve in curves:
                if (curve.batch, curve.context_tokens) == (batch, context):
                    source = sources.index((curve.device, curve.model))
                    _draw_curve(axes, curve, f"C{source % 10}")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.grid(alpha=0.3)
            axes.legend(fontsize="x-small")
    figure.supxlabel("tokens of the step, K")
    figure.supylabel("time relative to one token a sequence")
    figure.savefig(path, dpi=150)


def _draw_curve(axes: Axes, curve: Curve, colour: str) -> None:
    """Draw a measured curve solid and filled, a modelled one dash-dotted and hollow."""
    tokens = [point.tokens for point in curve.points]
    first = curve.points[0].seconds
    axes.errorbar(
        tokens,
        [curve.relative(point) for point in curve.points],
        yerr=_error_bars(curve, first),
        linestyle="-." if curve.modelled else "-",
        marker="o",
        markerfacecolor="none" if curve.modelled else colour,
        capsize=2,
        color=colour,
        label=f"{curve.device}, {curve.model}{' (modelled)' if curve.modelled else ''}",
    )
    roofline = [curve.relative_roofline(point) for point in curve.points]
    axes.plot(tokens, roofline, "--", color=colour, linewidth=1, alpha=0.6, label="its roofline")


def _error_bars(curve: Curve, first: float) -> list[list[float]] | None:
    """Return the distances to the quartiles; none for modelled times."""
    below, above = [], []
    for point in curve.points:
        if point.seconds_quartiles is None:
            return None
        low, high = point.seconds_quartiles
        below.append((point.seconds - low) / first)
        above.append((high - point.seconds) / first)
    return [below, above]
