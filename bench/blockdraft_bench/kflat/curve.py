"""The K-flat curve: what verifying K tokens costs against verifying one, and why.

Verification reads all weights whatever K is. While that takes longer than the arithmetic, more
tokens are free; from the knee K* on they are not, on a device that does nothing else. Where a
measured curve rises earlier, the roofline does not explain it: that is overhead.
"""

from dataclasses import dataclass

from blockdraft_aot.roofline import Roofline
from blockdraft_bench.kflat.decoder_cost import step_cost
from blockdraft_models.decoder.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step to be timed.

    Attributes:
        batch: Sequences.
        context_tokens: Tokens of each sequence in the cache.
        tokens: New tokens of all sequences together, evenly split.
    """

    batch: int
    context_tokens: int
    tokens: int

    @property
    def tokens_per_sequence(self) -> int:
        """New tokens of each sequence."""
        return self.tokens // self.batch


@dataclass(frozen=True, slots=True)
class Point:
    """One step size of a curve.

    Attributes:
        tokens: Tokens of the step, K.
        seconds: Median time, or modelled time.
        seconds_quartiles: First and third quartile; None if modelled.
        flops: Operations the step needs at least.
        bytes: Bytes it needs at least.
        compiled_flops: Operations the compiler counts; None if measured.
        compiled_bytes: Bytes the compiler counts; None if measured.
    """

    tokens: int
    seconds: float
    seconds_quartiles: tuple[float, float] | None
    flops: float
    bytes: float
    compiled_flops: float | None = None
    compiled_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Times over K on one device, for one model, batch and context.

    Attributes:
        device: What it ran on, or was modelled for.
        model: Name of the model.
        modelled: Whether the times are the compiler's estimate and not measured.
        batch: Sequences.
        context_tokens: Tokens of each sequence in the cache.
        bytes_per_weight: Size of a weight.
        roofline: Of the device.
        points: At least one, by rising K; the first has one token a sequence.
    """

    device: str
    model: str
    modelled: bool
    batch: int
    context_tokens: int
    bytes_per_weight: int
    roofline: Roofline
    points: tuple[Point, ...]

    @property
    def knee_tokens(self) -> float:
        """K*, where reading the weights takes as long as the arithmetic."""
        return self.roofline.knee_tokens(self.bytes_per_weight)

    def relative(self, point: Point) -> float:
        """Return the time of a step over that with one token a sequence."""
        return point.seconds / self.points[0].seconds

    def roofline_seconds(self, point: Point) -> float:
        """Return the least time of a step."""
        return self.roofline.seconds(point.flops, point.bytes)

    def relative_roofline(self, point: Point) -> float:
        """Return the least time of a step over that with one token a sequence."""
        return self.roofline_seconds(point) / self.roofline_seconds(self.points[0])

    def free_until_tokens(self, tolerance: float) -> int:
        """Return the largest K that takes at most `1 + tolerance` times as long as the first."""
        return max(p.tokens for p in self.points if self.relative(p) <= 1.0 + tolerance)

    def explain(self, tolerance: float) -> str:
        """Say in words why verification stops being free where it does."""
        free = self.free_until_tokens(tolerance)
        verb = "is modelled to be" if self.modelled else "is"
        start = f"Verifying {verb} free up to K = {free}{self._exceptions(free, tolerance)}"
        paid = next((p for p in self.points if p.tokens > free), None)
        if paid is None:
            return f"{start}, the largest step; the knee is at {self.knee_tokens:.0f} tokens."
        why = f"a step of {paid.tokens} takes {self.relative(paid):.2f} times the smallest"
        return f"{start}; {why}. {self._cause(paid, tolerance)}"

    def _exceptions(self, free: int, tolerance: float) -> str:
        """Name the smaller steps that take longer, on a curve that does not only rise."""
        slow = [p for p in self.points if p.tokens < free and self.relative(p) > 1.0 + tolerance]
        if not slow:
            return ""
        return f" (but not at {', '.join(str(point.tokens) for point in slow)})"

    def _cause(self, paid: Point, tolerance: float) -> str:
        """Say what makes the first step that is not free slower."""
        knee, bound = f"{self.knee_tokens:.0f}", self.relative_roofline(paid)
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


def step_shapes(batches: list[int], contexts: list[int], max_tokens: int) -> tuple[StepShape, ...]:
    """Return every step to be timed: 1, 2, 4, ... tokens where they split evenly.

    Args:
        batches: Numbers of sequences.
        contexts: Tokens of each sequence in the cache.
        max_tokens: Most tokens of a step.
    """
    sizes = [1 << power for power in range(max_tokens.bit_length())]
    return tuple(
        StepShape(batch, context, tokens)
        for batch in batches
        for context in contexts
        for tokens in sizes
        if tokens % batch == 0
    )


def counted_point(
    config: DecoderConfig,
    shape: StepShape,
    bytes_per_weight: int,
    seconds: float,
    quartiles: tuple[float, float] | None,
    compiled_flops: float | None = None,
    compiled_bytes: float | None = None,
) -> Point:
    """Return a point with what its step needs at least."""
    cost = step_cost(
        config,
        batch=shape.batch,
        context_tokens=shape.context_tokens,
        tokens=shape.tokens,
        bytes_per_element=bytes_per_weight,
    )
    return Point(
        shape.tokens, seconds, quartiles, cost.flops, cost.bytes, compiled_flops, compiled_bytes
    )
