"""What three processes cost over one: the same decoding loop with and without gRPC between.

Arithmetic only. Each group of prompts is decoded four times, in the order one, three, three, one
process (A B B A), so that a machine that slows down or speeds up meets both alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.statistics import Estimate, bootstrap, identical_share, mean
from blockdraft_bench.serve.request_record import RequestRecord

# What the project demands of itself: at most this loss, wherever a step takes at least so long.
MAX_LOSS_SHARE = 0.05
MIN_STEP_SECONDS = 0.010


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which group of prompts: the n-th of its size."""

    concurrency: int
    number: int


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

    @classmethod
    def of(cls, answers: Sequence[RequestRecord], idle_cores: float | None) -> "Decoding":
        """Return the sums over answers."""
        return cls(
            token_ids=tuple(answer.token_ids for answer in answers),
            tokens=sum(answer.tokens_after_first for answer in answers),
            seconds=sum(answer.decode_seconds for answer in answers),
            steps=sum(answer.verification_steps for answer in answers),
            verify_seconds=sum(answer.verify_seconds for answer in answers),
            draft_seconds=sum(answer.draft_seconds for answer in answers),
            transport_seconds=sum(answer.transport_seconds for answer in answers),
            idle_cores=idle_cores,
        )


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
        ci95: Its 95 % interval over groups, if there are enough.
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
class Requirement:
    """What is demanded of the split.

    Attributes:
        max_loss_share: Most of the speed that may be lost.
        min_step_seconds: Shortest step of which that is demanded.
        met: Whether the loss is small enough; None where steps are too short to demand it.
        certain: Whether the whole interval says the same as the ratio.
    """

    max_loss_share: float
    min_step_seconds: float
    met: bool | None
    certain: bool

    @classmethod
    def asked(cls, ratio: Estimate, step_seconds: float) -> "Requirement":
        """Ask it of a ratio of speeds, at steps of the one process that take so long."""

        def small(speed_ratio: float | None) -> bool:
            return speed_ratio is not None and 1.0 - speed_ratio <= MAX_LOSS_SHARE

        met = small(ratio.value) if step_seconds >= MIN_STEP_SECONDS else None
        certain = ratio.ci95 is not None and all(small(edge) == met for edge in ratio.ci95)
        return cls(MAX_LOSS_SHARE, MIN_STEP_SECONDS, met, certain)

    def verdict(self) -> str:
        """Return it in words."""
        if self.met is None:
            return "steps too short to ask"
        return ("yes" if self.met else "no") + ("" if self.certain else ", within the noise")


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Three processes against one.

    Attributes:
        concurrency: Prompts decoded at a time.
        groups: Groups of that many prompts.
        one_process: The loop in one process.
        three_processes: The service, as its client sees it.
        ratio: Tokens per second of the service over those of the one process, over groups.
        identical_share: Share of answers whose tokens are the same in all four decodings.
        loss_share: Share of the speed that three processes lose; negative if they are faster.
        requirement: Whether that is little enough.
    """

    concurrency: int
    groups: int
    one_process: SideSummary
    three_processes: SideSummary
    ratio: Estimate
    identical_share: float
    loss_share: float
    requirement: Requirement

    @property
    def sides(self) -> tuple[SideSummary, SideSummary]:
        """One process, then three."""
        return self.one_process, self.three_processes


def summarize_split(
    comparisons: Mapping[int, Sequence[Comparison]], seed: int
) -> tuple[SplitSummary, ...]:
    """Compare both sides over all groups, at each number of prompts at a time.

    Nothing is said where no answer got beyond its first token.

    Args:
        comparisons: One for each group, by how many prompts are decoded at a time.
        seed: Of the bootstrap.
    """
    found = []
    for concurrency, groups in comparisons.items():
        counts = np.array(
            [
                [
                    sum(getattr(decoding, name) for decoding in side)
                    for side in (group.one_process, group.three_processes)
                    for name in ("tokens", "seconds")
                ]
                for group in groups
            ],
            np.float64,
        )
        if not counts.sum(axis=0).all():
            continue
        one_speed, three_speed, ratio = bootstrap(counts, _speeds, seed)
        one = _side([d for group in groups for d in group.one_process], one_speed)
        three = _side([d for group in groups for d in group.three_processes], three_speed)
        assert ratio.value is not None
        found.append(
            SplitSummary(
                concurrency=concurrency,
                groups=len(groups),
                one_process=one,
                three_processes=three,
                ratio=ratio,
                identical_share=_identical_share(groups),
                loss_share=1.0 - ratio.value,
                requirement=Requirement.asked(ratio, one.step_seconds),
            )
        )
    return tuple(found)


def _speeds(totals: Float[np.ndarray, "samples 4"]) -> Float[np.ndarray, "samples 3"]:
    """Return tokens per second of one process, of three, and their ratio."""
    one, three = totals[:, 0] / totals[:, 1], totals[:, 2] / totals[:, 3]
    return np.stack([one, three, three / one], axis=1)


def _identical_share(groups: Sequence[Comparison]) -> float:
    decodings = [(*group.one_process, *group.three_processes) for group in groups]
    return identical_share(
        (answers[1:], answers[:-1])
        for four in decodings
        for answers in zip(*(decoding.token_ids for decoding in four), strict=True)
    )


def _side(decodings: Sequence[Decoding], speed: Estimate) -> SideSummary:
    steps = sum(decoding.steps for decoding in decodings)

    def per_step(name: str) -> float:
        return float(sum(getattr(decoding, name) for decoding in decodings) / steps)

    assert speed.value is not None
    return SideSummary(
        tokens_per_second=speed.value,
        ci95=speed.ci95,
        step_seconds=per_step("seconds"),
        verify_seconds=per_step("verify_seconds"),
        draft_seconds=per_step("draft_seconds"),
        transport_seconds=per_step("transport_seconds"),
        tokens_per_step=per_step("tokens"),
        idle_cores=mean(decoding.idle_cores for decoding in decodings),
    )
