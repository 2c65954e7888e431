"""The K-flat curve: the least cost of a step, the time that it took, and the conclusion.

Verification reads all weights whatever K is. While that takes longer than the arithmetic, more
tokens are free; from the knee K* on they are not, on a device that does nothing else. Where a
curve rises earlier, the roofline does not explain it: that is overhead.

With H hidden, I intermediate, V vocabulary, L layers, A and G query and KV heads of width D, a
step over B sequences of context C with n new tokens each (T = B n) needs

* weights W = L (H D (2 A + 2 G) + 3 H I) + H V, each for one multiplication and one addition a
  token: 2 T W operations, read once whatever T is. Every token's logits are wanted.
* attention: each new token looks at its context, itself and the new ones before it, P =
  B (n C + n (n + 1) / 2) pairs, with 4 A D operations a layer (scores and mixture).
* K/V of B (C + n) positions read and of T written, 2 G D elements a layer each.

Left out are norms, rotation, softmax, residuals, biases, and all intermediate results, which a
perfect implementation keeps on the chip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from blockdraft_aot.roofline import Roofline
from blockdraft_bench.result import Cell, ResultRow, number, table
from blockdraft_models.decoder.config import DecoderConfig

# A step that takes longer than the smallest by no more than this share counts as free: noise.
TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step of `batch` sequences with this context in the cache, and `tokens` new ones in all."""

    batch: int
    context_tokens: int
    tokens: int

    @property
    def tokens_per_sequence(self) -> int:
        """New tokens of each sequence."""
        return self.tokens // self.batch


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step: floating point operations, and bytes from and to memory."""

    flops: float
    bytes: float


def step_cost(config: DecoderConfig, shape: StepShape, bytes_per_element: int) -> StepCost:
    """Return the least cost of a step; weights and cache have elements of one size."""
    batch, new = shape.batch, shape.tokens_per_sequence
    pairs = batch * (new * shape.context_tokens + new * (new + 1) // 2)
    positions = batch * (shape.context_tokens + new) + shape.tokens
    kv_elements = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    heads_width = config.num_heads * config.head_dim
    weights = weight_count(config)
    return StepCost(
        flops=2.0 * shape.tokens * weights + 4.0 * config.num_layers * heads_width * pairs,
        bytes=float(bytes_per_element) * (weights + kv_elements * positions),
    )


def weight_count(config: DecoderConfig) -> int:
    """Return the weights that every token is multiplied with, the head's included."""
    projections = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (projections + 3 * config.intermediate_size)
    return config.num_layers * layer + config.hidden_size * config.vocab_size


def step_shapes(
    batches: Sequence[int], contexts: Sequence[int], max_tokens: int
) -> tuple[StepShape, ...]:
    """Return every step to be timed: 1, 2, 4, ... tokens where they split evenly."""
    sizes = [1 << power for power in range(max_tokens.bit_length())]
    return tuple(
        StepShape(batch, context, tokens)
        for batch in batches
        for context in contexts
        for tokens in sizes
        if tokens % batch == 0
    )


@dataclass(frozen=True, slots=True)
class CurveName:
    """The device, model, batch and context of a curve."""

    device: str
    model: str
    batch: int
    context_tokens: int

    def __str__(self) -> str:
        """Return the curve's name in a sentence."""
        where = f"{self.device}, {self.model}, batch {self.batch}"
        return f"{where}, {self.context_tokens} context tokens"


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one step: median and quartiles."""

    seconds: float
    quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Times over K on one device; `steps` by rising K, the first of one token a sequence."""

    name: CurveName
    bytes_per_weight: int
    roofline: Roofline
    steps: Sequence[ResultRow]

    @property
    def knee_tokens(self) -> float:
        """K*, where reading the weights takes as long as the arithmetic."""
        return self.roofline.knee_tokens(self.bytes_per_weight)

    @property
    def free_until_tokens(self) -> int:
        """The largest K that takes hardly longer than the first."""
        free = (s["tokens"] for s in self.steps if s["relative_to_one"] <= 1.0 + TOLERANCE)
        return int(max(free))

    def summary(self) -> ResultRow:
        """Return the conclusions of the whole curve."""
        return {
            **asdict(self.name),
            "bytes_per_weight": self.bytes_per_weight,
            "roofline": self.roofline,
            "knee_tokens": self.knee_tokens,
            "free_until_tokens": self.free_until_tokens,
            "explanation": self.explain(),
        }

    def explain(self) -> str:
        """Say up to which K verifying is free, and how much of the rise the roofline explains."""
        free = self.free_until_tokens
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
    bytes_per_weight: int,
    roofline: Roofline,
) -> list[Curve]:
    """Return the timed steps of one device and model, as a curve for each batch and context."""
    groups: dict[CurveName, dict[int, tuple[Timing, StepCost]]] = {}
    for shape, timing in timings.items():
        name = CurveName(device, config.name, shape.batch, shape.context_tokens)
        cost = step_cost(config, shape, bytes_per_weight)
        groups.setdefault(name, {})[shape.tokens] = timing, cost
    return [
        Curve(name, bytes_per_weight, roofline, steps_of(name, group, roofline))
        for name, group in groups.items()
    ]


def steps_of(
    name: CurveName, timings: Mapping[int, tuple[Timing, StepCost]], roofline: Roofline
) -> list[ResultRow]:
    """Return the steps of a curve, each compared with the first and with the roofline.

    `timings` has the time and the least cost of each step by its tokens, which rise.
    """
    (first, _), *_ = timings.values()
    steps = []
    for tokens, (timing, cost) in timings.items():
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
                "roofline_seconds": bound,
                "seconds_over_roofline": timing.seconds / bound,
            }
        )
    return steps


def curve_table(curves: Sequence[Curve]) -> str:
    """Return a row for each curve, with the time of every step relative to the first."""
    sizes = sorted({step["tokens"] for curve in curves for step in curve.steps})
    headings = ["Device", "Model", "Batch", "Context", "K*", "Free until", "First, ms"]
    rows: list[list[Cell]] = []
    for curve in curves:
        name = curve.name
        relative = {step["tokens"]: number(step["relative_to_one"]) for step in curve.steps}
        rows.append(
            [
                name.device,
                name.model,
                name.batch,
                name.context_tokens,
                f"{curve.knee_tokens:.0f}",
                curve.free_until_tokens,
                f"{1e3 * curve.steps[0]['seconds']:.3g}",
                *(relative.get(size, "") for size in sizes),
            ]
        )
    return table([*headings, *map(str, sizes)], rows)
