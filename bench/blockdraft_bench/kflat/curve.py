"""The K-flat curve: what verifying K tokens costs against verifying one, and why.

Verification reads all weights whatever K is. While that takes longer than the arithmetic, more
tokens are free; from the knee K* on they are not, on a device that does nothing else. Where a
measured curve rises earlier, the roofline does not explain it: that is overhead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from blockdraft_aot.roofline import Roofline
from blockdraft_bench.kflat.cost import StepCost, StepShape, step_cost
from blockdraft_bench.result import Cell, Row, number, table
from blockdraft_models.decoder.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class CurveName:
    """On which device, for which model, batch and context; modelled ones ran nowhere."""

    device: str
    model: str
    modelled: bool
    batch: int
    context_tokens: int

    @property
    def marked_device(self) -> str:
        """The device, with a mark if nothing ran on it."""
        return f"{self.device} (modelled)" if self.modelled else self.device

    def __str__(self) -> str:
        """Return what to call the curve in a sentence."""
        where = f"{self.marked_device}, {self.model}, batch {self.batch}"
        return f"{where}, {self.context_tokens} context tokens"


@dataclass(frozen=True, slots=True)
class Timing:
    """What one step took.

    Attributes:
        seconds: Median time, or modelled time.
        quartiles: First and third quartile of the seconds; None if modelled.
        compiled: What the compiler counts; None if measured.
    """

    seconds: float
    quartiles: tuple[float, float] | None = None
    compiled: StepCost | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Times over K on one device, for one model, batch and context.

    Attributes:
        name: Which curve it is.
        bytes_per_weight: Size of a weight.
        roofline: Of the device.
        steps: At least one, by rising K; the first has one token a sequence.
    """

    name: CurveName
    bytes_per_weight: int
    roofline: Roofline
    steps: Sequence[Row]

    @property
    def knee_tokens(self) -> float:
        """K*, where reading the weights takes as long as the arithmetic."""
        return self.roofline.knee_tokens(self.bytes_per_weight)

    def free_until_tokens(self, tolerance: float) -> int:
        """Return the largest K that takes at most `1 + tolerance` times as long as the first."""
        free = (s["tokens"] for s in self.steps if s["relative_to_one"] <= 1.0 + tolerance)
        return int(max(free))

    def summary(self, tolerance: float) -> Row:
        """Return what the whole curve says."""
        return {
            **asdict(self.name),
            "bytes_per_weight": self.bytes_per_weight,
            "roofline": self.roofline,
            "knee_tokens": self.knee_tokens,
            "free_until_tokens": self.free_until_tokens(tolerance),
            "explanation": self.explain(tolerance),
        }

    def explain(self, tolerance: float) -> str:
        """Say in words until where verifying is free, and how much the roofline explains."""
        free = self.free_until_tokens(tolerance)
        paid = next((step for step in self.steps if step["tokens"] > free), None)
        if paid is None:
            return f"free up to the largest step, K = {free}"
        bound = paid["roofline_seconds"] / self.steps[0]["roofline_seconds"]
        return (
            f"free up to K = {free}; a step of {paid['tokens']} takes "
            f"{paid['relative_to_one']:.2f} times the smallest, where the roofline allows "
            f"{bound:.2f}"
        )


def curves_of(
    config: DecoderConfig,
    timings: Mapping[StepShape, Timing],
    *,
    device: str,
    modelled: bool,
    bytes_per_weight: int,
    roofline: Roofline,
) -> list[Curve]:
    """Return what the steps of one device and model took, as a curve for each batch and context."""
    groups: dict[CurveName, dict[int, tuple[Timing, StepCost]]] = {}
    for shape, timing in timings.items():
        name = CurveName(device, config.name, modelled, shape.batch, shape.context_tokens)
        cost = step_cost(config, shape, bytes_per_weight)
        groups.setdefault(name, {})[shape.tokens] = timing, cost
    return [
        Curve(name, bytes_per_weight, roofline, steps_of(name, group, roofline))
        for name, group in groups.items()
    ]


def steps_of(
    name: CurveName, timings: Mapping[int, tuple[Timing, StepCost]], roofline: Roofline
) -> list[Row]:
    """Return the steps of a curve, each held against the first and against the roofline.

    `timings` say what a step of so many tokens took and what it needs at least, by rising tokens.
    """
    (first, _), *_ = timings.values()
    steps = []
    for tokens, (timing, cost) in timings.items():
        compiled = timing.compiled
        bound = roofline.seconds(cost.flops, cost.bytes)
        steps.append(
            {
                **asdict(name),
                "tokens": tokens,
                "seconds": timing.seconds,
                "seconds_quartiles": timing.quartiles,
                "relative_to_one": timing.seconds / first.seconds,
                "flops": cost.flops,
                "bytes": cost.bytes,
                "compiled_flops": None if compiled is None else compiled.flops,
                "compiled_bytes": None if compiled is None else compiled.bytes,
                "roofline_seconds": bound,
                "seconds_over_roofline": timing.seconds / bound,
            }
        )
    return steps


def curve_table(curves: Sequence[Curve], tolerance: float) -> str:
    """Return a row for each curve, with the time of every step relative to the first."""
    sizes = sorted({step["tokens"] for curve in curves for step in curve.steps})
    headings = ["Device", "Model", "Batch", "Context", "K*", "Free until", "First, ms"]
    rows: list[list[Cell]] = []
    for curve in curves:
        name = curve.name
        relative = {step["tokens"]: number(step["relative_to_one"]) for step in curve.steps}
        rows.append(
            [
                name.marked_device,
                name.model,
                name.batch,
                name.context_tokens,
                f"{curve.knee_tokens:.0f}",
                curve.free_until_tokens(tolerance),
                f"{1e3 * curve.steps[0]['seconds']:.3g}",
                *(relative.get(size, "") for size in sizes),
            ]
        )
    return table([*headings, *map(str, sizes)], rows)
