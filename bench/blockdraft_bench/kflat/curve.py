"""The K-flat curve: what verifying K tokens costs against verifying one, and why.

Verification reads all weights whatever K is. While that takes longer than the arithmetic, more
tokens are free; from the knee K* on they are not, on a device that does nothing else. Where a
measured curve rises earlier, the roofline does not explain it: that is overhead.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from blockdraft_aot.roofline import Roofline
from blockdraft_bench.kflat.decoder_cost import StepCost, StepShape, step_cost
from blockdraft_bench.kflat.report import CurveName, CurveSummary, StepTime
from blockdraft_models.decoder.config import DecoderConfig


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
    steps: tuple[StepTime, ...]

    @property
    def knee_tokens(self) -> float:
        """K*, where reading the weights takes as long as the arithmetic."""
        return self.roofline.knee_tokens(self.bytes_per_weight)

    def free_until_tokens(self, tolerance: float) -> int:
        """Return the largest K that takes at most `1 + tolerance` times as long as the first."""
        return max(s.tokens for s in self.steps if s.relative_to_one <= 1.0 + tolerance)

    def summary(self, tolerance: float) -> CurveSummary:
        """Return what the whole curve says."""
        return CurveSummary(
            **asdict(self.name),
            bytes_per_weight=self.bytes_per_weight,
            roofline=self.roofline,
            knee_tokens=self.knee_tokens,
            free_until_tokens=self.free_until_tokens(tolerance),
            explanation=self.explain(tolerance),
        )

    def explain(self, tolerance: float) -> str:
        """Say in words why verification stops being free where it does."""
        free = self.free_until_tokens(tolerance)
        verb = "is modelled to be" if self.name.modelled else "is"
        start = f"Verifying {verb} free up to K = {free}{self._exceptions(free, tolerance)}"
        paid = next((step for step in self.steps if step.tokens > free), None)
        if paid is None:
            return f"{start}, the largest step; the knee is at {self.knee_tokens:.0f} tokens."
        why = f"a step of {paid.tokens} takes {paid.relative_to_one:.2f} times the smallest"
        return f"{start}; {why}. {self._cause(paid, tolerance)}"

    def _exceptions(self, free: int, tolerance: float) -> str:
        """Name the smaller steps that take longer, on a curve that does not only rise."""
        before = [step for step in self.steps if step.tokens < free]
        slow = [str(step.tokens) for step in before if step.relative_to_one > 1.0 + tolerance]
        return f" (but not at {', '.join(slow)})" if slow else ""

    def _cause(self, paid: StepTime, tolerance: float) -> str:
        """Say what makes the first step that is not free slower."""
        knee = f"{self.knee_tokens:.0f}"
        bound = paid.roofline_seconds / self.steps[0].roofline_seconds
        if bound > 1.0 + tolerance:
            if self.roofline.compute_bound(paid.flops, paid.bytes):
                return (
                    f"Compute-bound: its arithmetic alone allows no less than {bound:.2f} times, "
                    f"with the knee at {knee} tokens."
                )
            return (
                f"Memory-bound: reading K/V beside the weights allows no less than {bound:.2f} "
                f"times, with the knee at {knee} tokens."
            )
        text = (
            f"Overhead: the roofline allows {bound:.2f} times, with its knee at {knee} tokens; "
            "the implementation takes the rest"
        )
        if paid.compiled_bytes is None:
            return f"{text}."
        return (
            f"{text}: the compiler counts {paid.compiled_bytes / paid.bytes:.1f} times the bytes "
            "of weights and K/V, intermediate results and copies to faster memory included."
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
        name = CurveName(
            device=device,
            model=config.name,
            modelled=modelled,
            batch=shape.batch,
            context_tokens=shape.context_tokens,
        )
        cost = step_cost(config, shape, bytes_per_weight)
        groups.setdefault(name, {})[shape.tokens] = timing, cost
    return [
        Curve(name, bytes_per_weight, roofline, steps_of(name, group, roofline))
        for name, group in groups.items()
    ]


def steps_of(
    name: CurveName, timings: Mapping[int, tuple[Timing, StepCost]], roofline: Roofline
) -> tuple[StepTime, ...]:
    """Return the steps of a curve, each held against the first and against the roofline.

    Args:
        name: Which curve it is.
        timings: What a step of so many tokens took, and what it needs at least; by rising tokens.
        roofline: Of the device.
    """
    (first, _), *_ = timings.values()
    steps = []
    for tokens, (timing, cost) in timings.items():
        compiled = timing.compiled
        bound = roofline.seconds(cost.flops, cost.bytes)
        steps.append(
            StepTime(
                **asdict(name),
                tokens=tokens,
                seconds=timing.seconds,
                seconds_quartiles=timing.quartiles,
                relative_to_one=timing.seconds / first.seconds,
                flops=cost.flops,
                bytes=cost.bytes,
                compiled_flops=None if compiled is None else compiled.flops,
                compiled_bytes=None if compiled is None else compiled.bytes,
                roofline_seconds=bound,
                seconds_over_roofline=timing.seconds / bound,
            )
        )
    return tuple(steps)
