"""The cost of verifying in a report: the simplest curves are drawn."""

from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.axes import Axes

from blockdraft_bench.common.figure import curve_style, powers_of_two
from blockdraft_bench.kflat.report import KFlatReport, StepTime, markdown, steps_by_curve
from blockdraft_bench.report.section import Panel, Section


def simplest_curves(steps: Iterable[StepTime]) -> list[list[StepTime]]:
    """Return one curve for each device and model: fewest sequences, then shortest context."""
    chosen: dict[tuple[str, str, bool], list[StepTime]] = {}
    curves = steps_by_curve(steps)
    for name in sorted(curves, key=lambda name: (name.batch, name.context_tokens)):
        chosen.setdefault((name.device, name.model, name.modelled), curves[name])
    return list(chosen.values())


def draw_kflat(steps: Sequence[StepTime], axes: Axes) -> None:
    """Draw a curve for each device and model."""
    for index, curve in enumerate(simplest_curves(steps)):
        first = curve[0]
        axes.plot(
            [step.tokens for step in curve],
            [step.relative_to_one for step in curve],
            label=f"{first.marked_device}, {first.model}",
            **curve_style(first.modelled, f"C{index % 10}"),
        )
    powers_of_two(axes)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens of the step, K")
    axes.set_ylabel("time relative to one token a sequence")
    axes.legend(fontsize="x-small")


def _panel(reports: Sequence[KFlatReport]) -> Panel:
    steps = [step for report in reports for step in report.results]
    return Panel("kflat", "Cost of verifying K tokens", partial(draw_kflat, steps))


def _keys(report: KFlatReport) -> Iterable[str]:
    return (f"{step.curve}, {step.tokens} tokens" for step in report.results)


KFLAT = Section("Cost of verifying K tokens", KFlatReport, markdown, _panel, _keys)
