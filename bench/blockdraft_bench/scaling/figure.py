"""Predicted scaling as a picture: τ and speed-up over the block size."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

# Figures made without pyplot draw with Agg, on any machine and without global state.
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockdraft_bench.scaling.decay import DecayFit
from blockdraft_bench.scaling.predict import PredictedLength, PredictedSpeed

# Other drafters for comparison: so much better or worse at the first position.
SHIFTS = (-0.1, 0.0, 0.1, 0.2)


def draw_scaling(
    fit: DecayFit,
    lengths: Sequence[PredictedLength],
    speeds: Sequence[PredictedSpeed],
    path: Path,
) -> None:
    """Write a PNG.

    Args:
        fit: The fitted decay.
        lengths: Predicted and measured τ.
        speeds: Predicted speed-ups.
        path: Where to.
    """
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_lengths(left, fit, lengths)
    _draw_speeds(right, speeds)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("block size K, anchor included")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=150)


def _draw_lengths(axes: Axes, fit: DecayFit, lengths: Sequence[PredictedLength]) -> None:
    """Draw τ at several acceptances with the same decay, and what was measured."""
    sizes = range(2, lengths[-1].block_size + 1)
    for shift in SHIFTS:
        first = fit.decay.first + shift
        if not 0.0 < first <= 1.0:
            continue
        decay = replace(fit.decay, first=first)
        axes.plot(
            sizes,
            [decay.acceptance_length(size) for size in sizes],
            "--" if shift else "-",
            label=f"a = {first:.2f}, d = {decay.rate:.2f}{'' if shift else ' (fitted)'}",
        )
    measured = [(length.block_size, found) for length in lengths for found in length.measured]
    for cut_short, face in ((False, "black"), (True, "none")):
        chosen = [(size, found) for size, found in measured if found.cut_short is cut_short]
        if not chosen:
            continue
        below = [0.0 if f.ci95 is None else f.value - f.ci95[0] for _, f in chosen]
        above = [0.0 if f.ci95 is None else f.ci95[1] - f.value for _, f in chosen]
        axes.errorbar(
            [size for size, _ in chosen],
            [found.value for _, found in chosen],
            yerr=[[max(0.0, b) for b in below], [max(0.0, a) for a in above]],
            fmt="o",
            color="black",
            markerfacecolor=face,
            capsize=3,
            label="measured, cut short" if cut_short else "measured",
        )
    axes.set_ylabel("acceptance length τ, tokens per verification")


def _draw_speeds(axes: Axes, speeds: Sequence[PredictedSpeed]) -> None:
    """Draw the speed-up on each cost curve, modelled ones dash-dotted and hollow."""
    for index, speed in enumerate(speeds):
        curve, colour = speed.curve, f"C{index % 10}"
        known = [(size, value) for size, value in speed.speed_ups if value is not None]
        label = f"{curve.device}, {curve.model}, context {curve.context_tokens}"
        axes.plot(
            [size for size, _ in known],
            [value for _, value in known],
            "-." if curve.modelled else "-",
            marker="o",
            markerfacecolor="none" if curve.modelled else colour,
            color=colour,
            label=f"{label} (modelled)" if curve.modelled else label,
        )
    axes.axhline(1.0, color="grey", linewidth=0.8)  # plain decoding
    axes.set_ylabel("predicted speed-up over plain decoding")
