"""Speed-up from acceptance and costs, and what buys more of it: better drafts or longer ones.

Plain decoding gains one token in t_verify(1). Drafting gains τ(K) tokens in t_verify(K) + t_draft +
overhead, hence

    speed-up(K) = tau(K) * t_verify(1) / (t_verify(K) + t_draft + overhead).

t_draft does not depend on K: one pass paints the whole block. With B sequences a step verifies
B K tokens; a step of plain decoding has B.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from blockdraft_bench.kflat.report import CurveName
from blockdraft_bench.scaling.decay import Decay

# "One percentage point of acceptance".
POINT = 0.01


@dataclass(frozen=True, slots=True)
class CostCurve:
    """What verifying costs.

    Attributes:
        name: On which device, for which model, batch and context.
        tokens: Tokens of each measured step, rising; the first is the batch.
        seconds: Of each measured step.
    """

    name: CurveName
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def verify_seconds(self, block_size: int) -> float | None:
        """Return the seconds of verifying a block of each sequence; None past the curve's end.

        Between two measured steps both time and tokens are interpolated as logarithms.
        """
        tokens = self.name.batch * block_size
        if not self.tokens[0] <= tokens <= self.tokens[-1]:
            return None
        logs = np.interp(np.log(tokens), np.log(self.tokens), np.log(self.seconds))
        return float(np.exp(logs))


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What drafting adds to a step, in seconds.

    Attributes:
        draft: The drafter's pass.
        overhead: Everything else that plain decoding does not have.
    """

    draft: float = 0.0
    overhead: float = 0.0


def speed_up(decay: Decay, block_size: int, curve: CostCurve, cost: DraftCost) -> float | None:
    """Return tokens per second over those of plain decoding; None past the curve's end."""
    plain, verify = curve.verify_seconds(1), curve.verify_seconds(block_size)
    if plain is None or verify is None:
        return None
    return decay.acceptance_length(block_size) * plain / (verify + cost.draft + cost.overhead)


def best_block_size(decay: Decay, curve: CostCurve, cost: DraftCost) -> int | None:
    """Return the block, a power of two from 2 on, with the greatest speed-up.

    None if the curve does not reach even the smallest. Steps are padded to powers of two, so that
    no other block fills them.
    """
    sizes: list[int] = []
    while curve.verify_seconds(2 << len(sizes)) is not None:
        sizes.append(2 << len(sizes))
    return max(sizes, key=lambda size: speed_up(decay, size, curve, cost) or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change adds; the speed-up is None past the curve's end."""

    acceptance_length: float
    speed_up: float | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One percentage point of acceptance against blocks of twice the size.

    Attributes:
        block_size: Where both start from.
        point: What adding 0.01 to a, at the same d, gains.
        doubling: What doubling the block gains.
        points_for_acceptance_length: Percentage points of acceptance that raise τ as doubling
            does; None if none can.
        points_for_speed_up: Those that raise the speed-up as doubling does.
    """

    block_size: int
    point: Gain
    doubling: Gain
    points_for_acceptance_length: float | None
    points_for_speed_up: float | None

    def conclusion(self) -> str:
        """Say in a sentence which is worth more."""
        text = (
            f"At blocks of {self.block_size}, one percentage point of acceptance adds "
            f"{self.point.acceptance_length:.3f} to τ, doubling the block "
            f"{self.doubling.acceptance_length:.3f}"
        )
        point, doubling = self.point.speed_up, self.doubling.speed_up
        if point is None or doubling is None:
            return f"{text}; the speed-up of doubling lies past the end of the cost curve."
        text += f"; of the speed-up they add {point:+.3f} and {doubling:+.3f}: "
        if doubling <= 0:
            return f"{text}longer blocks do not pay, better drafts do."
        if point >= doubling:
            return f"{text}a single point is worth more than doubling."
        points = self.points_for_speed_up
        worth = "more than any" if points is None else f"as much as {points:.1f}"
        return f"{text}doubling is worth {worth} points."


def exchange(decay: Decay, block_size: int, curve: CostCurve, cost: DraftCost) -> Exchange:
    """Compare one more point of acceptance with blocks of twice the size."""

    def gain(changed: Decay, size: int) -> Gain:
        before = speed_up(decay, block_size, curve, cost)
        after = speed_up(changed, size, curve, cost)
        return Gain(
            changed.acceptance_length(size) - decay.acceptance_length(block_size),
            None if before is None or after is None else after - before,
        )

    def ratio(gained: float | None, by_point: float | None) -> float | None:
        return gained / by_point if gained is not None and by_point else None

    point = gain(replace(decay, first=decay.first + POINT), block_size)
    doubling = gain(decay, 2 * block_size)
    return Exchange(
        block_size,
        point,
        doubling,
        ratio(doubling.acceptance_length, point.acceptance_length),
        ratio(doubling.speed_up, point.speed_up),
    )


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """The prediction for one block size; None past the curve's end."""

    block_size: int
    verify_seconds: float | None
    speed_up: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrediction(CurveName):
    """Speed-up on one cost curve.

    Attributes:
        predictions: By rising block size.
        best_block_size: The power of two with the greatest speed-up; None if none is on the curve.
        exchange: Acceptance against block size, from the fitted file's block on.
        conclusion: Which of the two is worth more, in words.
    """

    predictions: tuple[SpeedUp, ...]
    best_block_size: int | None
    exchange: Exchange
    conclusion: str


def predict_speeds(
    decay: Decay, block_size: int, sizes: Sequence[int], curve: CostCurve, cost: DraftCost
) -> CurvePrediction:
    """Return the speed-up at `sizes` on one cost curve."""
    traded = exchange(decay, block_size, curve, cost)
    return CurvePrediction(
        **asdict(curve.name),
        predictions=tuple(
            SpeedUp(size, curve.verify_seconds(size), speed_up(decay, size, curve, cost))
            for size in sizes
        ),
        best_block_size=best_block_size(decay, curve, cost),
        exchange=traded,
        conclusion=traded.conclusion(),
    )
