"""Speed-up from acceptance and costs, by hand."""

import numpy as np
import pytest

from blockdraft_bench.common.provenance import Target
from blockdraft_bench.kflat.report import CurveName
from blockdraft_bench.scaling.decay import Decay, fit_decay
from blockdraft_bench.scaling.inputs import ReachCounts
from blockdraft_bench.scaling.lengths import predict_lengths
from blockdraft_bench.scaling.prediction import (
    CostCurve,
    DraftCost,
    best_block_size,
    exchange,
    speed_up,
)

# Certain at first, then half as likely each time: τ(2) = 2, τ(3) = 2.5, τ(4) = 2.625.
DECAY = Decay(1.0, 0.5)
FREE = DraftCost()


def curve(*seconds: float, batch: int = 1) -> CostCurve:
    tokens = tuple(batch << power for power in range(len(seconds)))
    name = CurveName(
        device="a device", model="a model", modelled=False, batch=batch, context_tokens=128
    )
    return CostCurve(name, tokens, seconds)


def test_verification_is_interpolated_between_steps_and_not_beyond() -> None:
    costs = curve(1.0, 2.0, 8.0)
    assert costs.verify_seconds(1) == pytest.approx(1.0)
    assert costs.verify_seconds(4) == pytest.approx(8.0)
    # On the straight line of the logarithms: 2 * (3 / 2) ** 2.
    assert costs.verify_seconds(3) == pytest.approx(4.5)
    assert costs.verify_seconds(5) is None
    # Blocks of all sequences make one step.
    assert curve(1.0, 2.0, batch=4).verify_seconds(2) == pytest.approx(2.0)
    assert curve(1.0, 2.0, batch=4).verify_seconds(3) is None


def test_speed_up_by_hand() -> None:
    costs = curve(1.0, 1.0, 1.5)
    assert speed_up(DECAY, 2, costs, FREE) == pytest.approx(2.0)
    assert speed_up(DECAY, 4, costs, FREE) == pytest.approx(2.625 / 1.5)
    assert speed_up(DECAY, 2, costs, DraftCost(0.4, 0.2)) == pytest.approx(2.0 / 1.6)
    assert speed_up(DECAY, 8, costs, FREE) is None


def test_the_best_block() -> None:
    assert best_block_size(DECAY, curve(1.0, 1.0, 1.5), FREE) == 2
    assert best_block_size(DECAY, curve(1.0, 1.0, 1.1), FREE) == 4
    assert best_block_size(DECAY, curve(1.0), FREE) is None


def test_a_point_against_doubling_by_hand() -> None:
    decay = Decay(0.5, 1.0)
    traded = exchange(decay, 2, curve(1.0, 1.0, 1.25), FREE)
    # τ(2) = 1 + a; τ(4) = 1 + a + a² + a³.
    assert traded.point.acceptance_length == pytest.approx(0.01)
    assert traded.doubling.acceptance_length == pytest.approx(0.375)
    assert traded.points_for_acceptance_length == pytest.approx(37.5)
    assert traded.point.speed_up == pytest.approx(0.01)
    assert traded.doubling.speed_up == pytest.approx(1.875 / 1.25 - 1.5)
    assert "longer blocks do not pay" in exchange(decay, 2, curve(1.0, 1.0, 1.5), FREE).conclusion()


def test_conclusions_say_which_is_worth_more() -> None:
    decay = Decay(0.5, 1.0)
    flat = exchange(decay, 2, curve(1.0, 1.0, 1.0), FREE)
    assert flat.points_for_speed_up == pytest.approx(37.5)
    assert flat.conclusion() == (
        "At blocks of 2, one percentage point of acceptance adds 0.010 to τ, doubling the block "
        "0.375; of the speed-up they add +0.010 and +0.375: doubling is worth as much as "
        "37.5 points."
    )
    # 1.875 / 1.245 - 1.5 = 0.006: less than the point.
    dear = exchange(decay, 2, curve(1.0, 1.0, 1.245), FREE)
    assert dear.conclusion().endswith("a single point is worth more than doubling.")
    unknown = exchange(decay, 2, curve(1.0, 1.0), FREE)
    assert unknown.points_for_speed_up is None
    assert unknown.conclusion().endswith("lies past the end of the cost curve.")
    # Nothing is better than certain.
    certain = exchange(Decay(1.0, 1.0), 2, curve(1.0, 1.0, 1.0), FREE)
    assert certain.points_for_acceptance_length is None
    assert certain.conclusion().endswith("doubling is worth more than any points.")


def test_sizes_of_the_tables_and_what_was_measured_of_them() -> None:
    def counts(source: str, *reached: int) -> ReachCounts:
        return ReachCounts(
            source, Target("a target"), "a drafter", np.array([reached]), per_answer=True
        )

    def measured(fitted: ReachCounts, *others: ReachCounts) -> dict[int, list[tuple[str, bool]]]:
        fit = fit_decay(fitted.counts, per_answer=True, seed=0)
        lengths = predict_lengths(fit, fitted, others, seed=0)
        assert [length.extrapolated for length in lengths] == [
            length.block_size > fitted.block_size for length in lengths
        ]
        return {n.block_size: [(m.source, m.cut_short) for m in n.measured] for n in lengths}

    six = counts("six", 10, 6, 4, 3, 2, 1)
    assert measured(six) == {
        4: [("six", True)], 6: [("six", False)], 8: [], 16: [], 32: [],
    }  # fmt: skip
    assert measured(six, counts("twelve", *range(12, 0, -1))) == {
        4: [("six", True)], 6: [("six", False)], 8: [], 12: [("twelve", False)], 16: [], 32: [],
    }  # fmt: skip
