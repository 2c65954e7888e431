"""What three processes cost over one: the same decoding loop with and without gRPC between.

Arithmetic only. Each group of prompts is decoded four times, in the order one, three, three, one
process (A B B A), so that a machine that slows down or speeds up meets both alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.bootstrap import percentile_interval, resampled_totals

# What the project demands of itself: at most this loss, wherever a step takes at least so long.
MAX_LOSS_SHARE = 0.05
MIN_STEP_SECONDS = 0.010


@dataclass(frozen=True, slots=True)
class Decoding:
    """One group of prompts, decoded once.

    Attributes:
        token_ids: The tokens of each answer.
        tokens: Tokens of all answers that came after each one's first.
        seconds: Sum over the answers of the time from its first token to its last.
        steps: Sum over the answers of the verifications in that time.
        verify_seconds: Of the time, in the target's forward pass.
        draft_seconds: Of the time, waiting while the drafter computed.
        transport_seconds: Of the time, waiting for the drafter beyond that.
        idle_cores: Processors that the side which was not asked kept busy; None if unknown.
    """

    token_ids: tuple[tuple[int, ...], ...]
    tokens: int
    seconds: float
    steps: int
    verify_seconds: float = 0.0
    draft_seconds: float = 0.0
    transport_seconds: float = 0.0
    idle_cores: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One group of prompts, decoded twice by either side."""

    one_process: tuple[Decoding, Decoding]
    three_processes: tuple[Decoding, Decoding]


@dataclass(frozen=True, slots=True)
class SideSummary:
    """One side.

    Attributes:
        tokens_per_second: Of one sequence, after its first token.
        ci95: Its 95 % interval over groups; None with fewer than two.
        step_seconds: Time of a verification step with all that belongs to it.
        verify_seconds: Of it, in the target's forward pass.
        draft_seconds: Of it, waiting while the drafter computed.
        transport_seconds: Of it, waiting for the drafter beyond that.
        tokens_per_step: Tokens gained per step.
        idle_cores: Processors the other side kept busy meanwhile, on average. While the service
            decodes, that is the measuring process itself, its client included.
    """

    tokens_per_second: float
    ci95: tuple[float, float] | None
    step_seconds: float
    verify_seconds: float
    draft_seconds: float
    transport_seconds: float
    tokens_per_step: float
    idle_cores: float | None


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Three processes against one.

    Attributes:
        concurrency: Prompts decoded at a time.
        groups: Groups of that many prompts.
        one_process: The loop in one process.
        three_processes: The service, as its client sees it.
        ratio: Tokens per second of the service over those of the one process.
        ratio_ci95: Its 95 % interval over groups; None with fewer than two.
        identical_share: Share of answers whose tokens are the same in all four decodings.
    """

    concurrency: int
    groups: int
    one_process: SideSummary
    three_processes: SideSummary
    ratio: float
    ratio_ci95: tuple[float, float] | None
    identical_share: float

    @property
    def loss_share(self) -> float:
        """Share of the speed that three processes lose; negative if they are faster."""
        return 1.0 - self.ratio

    @property
    def requirement_met(self) -> bool | None:
        """Whether the loss is small enough; None where steps are too short to demand it."""
        if self.one_process.step_seconds < MIN_STEP_SECONDS:
            return None
        return self.loss_share <= MAX_LOSS_SHARE

    @property
    def requirement_certain(self) -> bool:
        """Whether the whole interval says the same as the ratio."""
        if self.ratio_ci95 is None:
            return False
        return all(
            (1.0 - edge <= MAX_LOSS_SHARE) == self.requirement_met for edge in self.ratio_ci95
        )


def summarize_split(
    concurrency: int, comparisons: Sequence[Comparison], seed: int
) -> SplitSummary | None:
    """Compare both sides over all groups; None if no answer got beyond its first token.

    Args:
        concurrency: Prompts decoded at a time.
        comparisons: One for each group; at least one.
        seed: Of the bootstrap.
    """
    counts = np.array(
        [
            [
                sum(getattr(d, name) for d in side)
                for side in sides
                for name in ("tokens", "seconds")
            ]
            for sides in ((c.one_process, c.three_processes) for c in comparisons)
        ],
        np.float64,
    )
    totals = counts.sum(axis=0, keepdims=True)
    if not totals.all():
        return None
    one, three, ratio = _speeds(totals)[:, 0]
    edges: list[tuple[float, float] | None] = [None, None, None]
    if len(comparisons) > 1:
        edges = [percentile_interval(values) for values in _speeds(resampled_totals(counts, seed))]
    same = [
        len(set(answers)) == 1
        for c in comparisons
        for answers in zip(
            *(d.token_ids for d in (*c.one_process, *c.three_processes)), strict=True
        )
    ]
    return SplitSummary(
        concurrency=concurrency,
        groups=len(comparisons),
        one_process=_side([d for c in comparisons for d in c.one_process], float(one), edges[0]),
        three_processes=_side(
            [d for c in comparisons for d in c.three_processes], float(three), edges[1]
        ),
        ratio=float(ratio),
        ratio_ci95=edges[2],
        identical_share=sum(same) / len(same),
    )


def _speeds(totals: Float[np.ndarray, "samples 4"]) -> Float[np.ndarray, "3 samples"]:
    """Return tokens per second of one process, of three, and their ratio."""
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample without decoded tokens
        one, three = totals[:, 0] / totals[:, 1], totals[:, 2] / totals[:, 3]
        return np.stack([one, three, three / one])


def _side(
    decodings: Sequence[Decoding], speed: float, interval: tuple[float, float] | None
) -> SideSummary:
    steps = sum(decoding.steps for decoding in decodings)

    def per_step(name: str) -> float:
        return float(sum(getattr(decoding, name) for decoding in decodings) / steps)

    idle = [d.idle_cores for d in decodings if d.idle_cores is not None]
    return SideSummary(
        tokens_per_second=speed,
        ci95=interval,
        step_seconds=per_step("seconds"),
        verify_seconds=per_step("verify_seconds"),
        draft_seconds=per_step("draft_seconds"),
        transport_seconds=per_step("transport_seconds"),
        tokens_per_step=per_step("tokens"),
        idle_cores=sum(idle) / len(idle) if idle else None,
    )
