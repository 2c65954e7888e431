"""The K-flat curves on paper: what `kflat.json` holds, and its Markdown."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

from blockdraft_aot.roofline import Roofline
from blockdraft_bench.common.markdown import Cell, bullets, number, page, table
from blockdraft_bench.common.provenance import Report
from blockdraft_bench.kflat.settings import StepSettings

MODELLED_NOTE = (
    "Modelled curves are XLA's model of the compiled greedy step on all chips, one layer times "
    "their number, with attention by hand; nothing ran. What fits, `blockdraft compile` tells."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveName:
    """Which curve a number belongs to.

    Attributes:
        device: What the steps ran on, or were modelled for.
        model: Name of the model.
        modelled: Whether the times are the compiler's estimate and not measured.
        batch: Sequences.
        context_tokens: Tokens of each sequence in the cache.
    """

    device: str
    model: str
    modelled: bool
    batch: int
    context_tokens: int

    @property
    def curve(self) -> "CurveName":
        """The name alone, equal for all that belongs to one curve."""
        return CurveName(**{each.name: getattr(self, each.name) for each in fields(CurveName)})

    @property
    def marked_device(self) -> str:
        """The device, with a mark if nothing ran on it."""
        return f"{self.device} (modelled)" if self.modelled else self.device

    def __str__(self) -> str:
        """Return what to call the curve in a sentence."""
        where = f"{self.marked_device}, {self.model}, batch {self.batch}"
        return f"{where}, {self.context_tokens} context tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(CurveName):
    """One step size of a curve.

    Attributes:
        tokens: Tokens of the step, K.
        seconds: Median time, or modelled time.
        seconds_quartiles: First and third quartile; None if modelled.
        relative_to_one: Time over that of the step with one token a sequence.
        flops: Operations the step needs at least.
        bytes: Bytes it needs at least.
        compiled_flops: Operations the compiler counts; None if measured.
        compiled_bytes: Bytes the compiler counts; None if measured.
        roofline_seconds: The least time the device can need.
        seconds_over_roofline: Time over that.
    """

    tokens: int
    seconds: float
    seconds_quartiles: tuple[float, float] | None
    relative_to_one: float
    flops: float
    bytes: float
    compiled_flops: float | None
    compiled_bytes: float | None
    roofline_seconds: float
    seconds_over_roofline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSummary(CurveName):
    """What a whole curve says.

    Attributes:
        bytes_per_weight: Size of a weight.
        roofline: Of the device.
        knee_tokens: K*, where reading the weights takes as long as the arithmetic.
        free_until_tokens: The largest K that takes at most the tolerance longer than the smallest.
        explanation: In words, why verification stops being free where it does.
    """

    bytes_per_weight: int
    roofline: Roofline
    knee_tokens: float
    free_until_tokens: int
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KFlatReport(StepSettings, Report):
    """All curves, and how they were measured and modelled.

    Attributes:
        modelled_note: What a modelled time is; None if there is none.
        curves: One for each device, model, batch and context.
        results: Their steps, by curve and rising size.
    """

    benchmark: Literal["kflat"] = "kflat"
    modelled_note: str | None
    curves: tuple[CurveSummary, ...] = ()
    results: tuple[StepTime, ...] = ()


def steps_by_curve(steps: Iterable[StepTime]) -> dict[CurveName, list[StepTime]]:
    """Return the steps of each curve, by rising size."""
    curves: dict[CurveName, list[StepTime]] = {}
    for step in steps:
        curves.setdefault(step.curve, []).append(step)
    return {name: sorted(own, key=lambda step: step.tokens) for name, own in curves.items()}


def markdown(report: KFlatReport) -> str:
    """Return the table people read, with what they have to know about it."""
    sizes = sorted({step.tokens for step in report.results})
    steps = steps_by_curve(report.results)
    headings = ["Device", "Model", "Batch", "Context", "K*", "Free until", "First, ms"]
    rows: list[list[Cell]] = []
    for curve in report.curves:
        first, *_ = own = steps[curve.curve]
        relative = {step.tokens: number(step.relative_to_one) for step in own}
        rows.append(
            [
                curve.marked_device,
                curve.model,
                curve.batch,
                curve.context_tokens,
                f"{curve.knee_tokens:.0f}",
                curve.free_until_tokens,
                f"{1e3 * first.seconds:.3g}",
                *(relative.get(size, "") for size in sizes),
            ]
        )
    return page(
        f"Time of a verification step over K tokens, relative to one token a sequence. Target "
        f"{report.target}, medians of {report.runs} runs; free means at most "
        f"{report.tolerance:.0%} more; {report.made_on}.",
        table([*headings, *map(str, sizes)], rows),
        bullets(f"{curve.curve}: {curve.explanation}" for curve in report.curves),
        report.modelled_note or "",
    )
