"""The choice of the draft length, by hand."""

import itertools
import random

import pytest

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.engine.acceptance import AcceptanceEstimate, expected_drafts
from blockdraft_verifier.engine.cost_model import (
    FIRST_DRAFTS,
    NO_PROMPTS,
    CostModel,
    WaitingPrompts,
)
from blockdraft_verifier.engine.costs import DraftCosts

FLAT = {Bucket(4, tokens, tokens): 1.0 for tokens in (4, 8, 16, 32)}
LINEAR = {Bucket(4, tokens, tokens): tokens / 4 for tokens in (4, 8, 16, 32)}


def estimates(rate: float, rows: int = 1) -> list[AcceptanceEstimate]:
    return [AcceptanceEstimate([rate] * 7) for _ in range(rows)]


def model(verify: dict[Bucket, float], *draft: float) -> CostModel:
    costs = CostModel(verify)
    costs.drafts = DraftCosts(8, draft)
    return costs


def best(
    costs: CostModel,
    estimates: list[AcceptanceEstimate],
    most: int,
    prompts: WaitingPrompts = NO_PROMPTS,
) -> int:
    return costs.expected_steps(estimates, most, prompts).best()


def lost(costs: CostModel, estimates: list[AcceptanceEstimate], length: int) -> float:
    """Return what a step of up to so many drafted tokens loses against one of none."""
    return costs.expected_steps(estimates, 7).lost_seconds(length, 0)


@pytest.mark.parametrize(
    ("verify", "tokens", "slowdown", "room"),
    [
        (LINEAR, 4, 1.0, 4),  # prompts go on in any case
        (LINEAR, 4, 2.0, 4),
        (LINEAR, 4, 3.9, 4),
        (LINEAR, 4, 4.0, 12),
        (LINEAR, 3, 4.0, 13),
        (LINEAR, 8, 100.0, 24),
        (LINEAR, 31, 1.0, 1),
        (FLAT, 4, 1.0, 28),
    ],
)
def test_prompts_get_room_as_long_as_a_step_stays_short(
    verify: dict[Bucket, float], tokens: int, slowdown: float, room: int
) -> None:
    assert CostModel(verify).prompt_room(3, tokens, slowdown, 0) == room


@pytest.mark.parametrize(
    ("context", "room"),
    # Steps of 8, 16 and 32 tokens take 2, 4 and 8 s, and as much again at a context of 100, the
    # part itself included.
    [(0, 28), (22, 28), (23, 12), (188, 12), (189, 4), (10_000, 4)],
)
def test_the_further_a_prompt_is_the_less_of_it_fits(context: int, room: int) -> None:
    costs = CostModel(LINEAR, {bucket: each / 100 for bucket, each in LINEAR.items()})
    assert costs.prompt_room(3, 4, 12.0, context) == room


def test_a_prompt_token_counts_for_what_it_takes() -> None:
    # A step of 8 tokens takes 1 s, of 64 takes 4: 1/16 s for a prompt token, 1/4 s for a gained one
    # when 16 sequences decode plainly.
    costs = CostModel({Bucket(16, 8, 8): 1.0, Bucket(16, 64, 64): 4.0})
    many = WaitingPrompts(1000, 10.0)
    assert costs.worth(8, 8, 8.0, 0.0, WaitingPrompts()) == 8.0
    assert costs.worth(8, 8, 8.0, 0.0, many) == pytest.approx((8.0 + 56 / 4) / 4.0)
    # No more than there are.
    few = WaitingPrompts(6, 10.0)
    assert costs.worth(8, 8, 8.0, 0.0, few) == pytest.approx((8 + 1.5) / 4)
    # Drafts find room beside these, and do not take the room of those.
    assert costs.worth(8, 58, 20.0, 1.0, few) == pytest.approx((20 + 1.5) / 5)
    assert costs.worth(8, 59, 20.0, 1.0, few) == 0.0
    assert costs.worth(8, 9, 20.0, 1.0, many) == 0.0
    # A full house has no row for a prompt.
    assert costs.worth(16, 16, 16.0, 0.0, many) == 16.0 / 4


@pytest.mark.parametrize(("waiting", "longest"), [(0, 3), (10, 2), (32, 1), (48, 0), (10_000, 0)])
def test_drafts_leave_prompts_their_room(waiting: int, longest: int) -> None:
    # Sixteen sequences of three drafted tokens each would fill the step.
    costs = model({Bucket(32, 16, 16): 0.8, Bucket(32, 64, 64): 1.0}, *[0.1] * 6)
    prompts = WaitingPrompts(waiting, 2.0)
    sure = [AcceptanceEstimate([0.99] * 3)] * 16
    assert best(costs, sure, 3, prompts) == longest
    # Nor are drafts probed where not even one that is always right would leave them that.
    poor = AcceptanceEstimate([0.2] * 3)
    probed = costs.probe_length([poor.successor() for _ in range(16)], poor, 3, prompts)
    assert bool(probed) == bool(longest)


def test_what_another_length_loses() -> None:
    costs = model(LINEAR, 0.5)
    # 8 tokens take 2 s, the drafter half a second more; plain decoding gains one token a second.
    fair = estimates(0.5)
    gained = 1 + 0.5 + 0.25 + 0.125 + 0.0625
    assert lost(costs, fair, 4) == pytest.approx(2.5 - gained)
    assert lost(costs, fair, 0) == 0.0


def test_an_unknown_sequence_gets_a_few_probes() -> None:
    costs, poor = model(FLAT, 0.5), AcceptanceEstimate([0.2] * 7)
    heir = poor.successor()
    assert best(costs, [heir], 7) == 0
    for _ in range(FIRST_DRAFTS):
        assert costs.probe_length([heir], poor, 7) > 0
        heir.update(7, 0)
    assert costs.probe_length([heir], poor, 7) == 0
    # A sequence whose drafts are right goes on.
    lucky = poor.successor()
    for _ in range(FIRST_DRAFTS):
        lucky.update(7, 4)
    assert best(costs, [lucky], 7) > 0
    # Most of a batch has to be unknown; and nothing is probed that cannot pay or is hopeless.
    assert costs.probe_length([heir, poor.successor()], poor, 7) == 0
    assert costs.probe_length([heir, poor.successor(), poor.successor()], poor, 7) > 0
    assert costs.probe_length([poor.successor()], AcceptanceEstimate([0.09] * 7), 7) == 0
    assert model(FLAT, 10.0).probe_length([poor.successor()], poor, 7) == 0


@pytest.mark.parametrize(
    ("verify", "draft", "right", "most", "length"),
    [
        # Free verification drafts as far as possible.
        (FLAT, 0.01, [0.9], 7, 7),
        (FLAT, 0.01, [0.9], 3, 3),
        (FLAT, 0.01, [0.9], 0, 0),
        # Seven tokens of 0.9 give at most 4.7 more; at 10 s a draft that is 5.7 / 11 < 1.
        (FLAT, 10.0, [0.9], 7, 0),
        (FLAT, 4.0, [0.9], 7, 7),
        # Poor acceptance stops drafting, which must gain to be chosen.
        (FLAT, 0.5, [0.05], 7, 0),
        (LINEAR, 0.0, [0.05] * 4, 7, 0),
        (FLAT, 0.0, [0.0], 7, 0),
        # One row: 1 + K tokens. Up to 3 drafted tokens stay in the bucket of 4; 4 and more double
        # the time. 3 drafted at 0.5: 1.875 tokens/s; 7 drafted: 1.992 / 2 s.
        (LINEAR, 0.0, [0.5], 7, 3),
        (FLAT, 0.0, [0.5], 7, 7),
        # 4 rows: 1 token each costs 1 s, 2 each cost 2 s. The good one alone cannot pay for that.
        (LINEAR, 0.0, [0.95, 0.0, 0.0, 0.0], 7, 0),
    ],
)
def test_the_draft_length_is_the_one_worth_most(
    verify: dict[Bucket, float], draft: float, right: list[float], most: int, length: int
) -> None:
    together = [AcceptanceEstimate([rate] * 7) for rate in right]
    assert best(model(verify, draft), together, most) == length


def test_drafts_are_shorter_where_each_token_costs_a_pass() -> None:
    costs = model(FLAT, 1.0)
    assert best(costs, estimates(0.6), 7) == 7
    # 0.14 s a token: 4 gain (1 + 1.3056) / 1.58, 3 gain (1 + 1.176) / 1.44, which is more.
    costs.drafts = DraftCosts(8, (1.0,), (0.16,))
    assert best(costs, estimates(0.6), 7) == 3


def test_a_drafter_that_ends_drafts_early_may_be_asked_for_more() -> None:
    # 1 s for a step of up to 8 tokens, 0.3 s for each token drafted.
    costs = model(FLAT, 0.0)
    costs.drafts = DraftCosts(8, (2.1,), (0.3,))
    gains = [0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7]
    assert best(costs, [AcceptanceEstimate(gains)], 7) == 1
    # Half of the drafts end after their first token, and those that go on are nearly always right.
    ending = AcceptanceEstimate([0.5, 0.8, 0.9, 0.95, 0.95, 0.95, 0.95], going_on=[1.0, 0.4])
    unending = AcceptanceEstimate(ending.by_position)
    assert best(costs, [unending], 7) < best(costs, [ending], 7) == 7


def test_what_drafts_that_end_early_leave_free_is_not_paid_for() -> None:
    # Each token verified costs as much as the first one.
    costs = CostModel({Bucket(2, size, size): float(size) for size in range(1, 17)})
    costs.drafts = DraftCosts(8, (0.0, 0.0))
    whole, half = (AcceptanceEstimate([0.5] * 7, going_on=[1.0, each]) for each in (1.0, 0.5))
    # 8 tokens gain 1 / 2 + ... + 1 / 2^7; 1 + 1 + 6 / 2 tokens the same, in five eighths of it.
    gained = 1.0 - 0.5**7
    assert lost(costs, [whole], 7) == pytest.approx(8 - (1 + gained))
    assert lost(costs, [half], 7) == pytest.approx(5 - (1 + gained))
    # Of two sequences 10 tokens.
    assert lost(costs, [half, half], 7) == pytest.approx(10 - 2 * (1 + gained))


def test_a_batch_over_the_largest_bucket_takes_several_steps() -> None:
    costs = CostModel(LINEAR)
    assert costs.verify_seconds(1, 4) == 1.0
    assert costs.verify_seconds(1, 5) == 2.0
    assert costs.verify_seconds(4, 32) == 8.0
    assert costs.verify_seconds(4, 33) == 8.0 + 1.0
    assert costs.verify_seconds(4, 64) == 16.0


@pytest.mark.parametrize(
    ("accepted", "draft_seconds", "must_pay", "wait"),
    [
        # Twice the usual time, while what is gained makes up for it.
        (1.0, 0.6, True, 1.2),
        # Four tokens are gained in a step of one; the time of three plain steps is won.
        (1.0, 2.9, True, 3.0),
        (1.0, 2.9, False, 5.8),
        # Nothing is gained: half of a plain step passes unnoticed.
        (0.0, 2.9, True, 0.5),
        (0.0, 0.1, False, 0.5),
    ],
)
def test_waiting_must_pay(
    accepted: float, draft_seconds: float, must_pay: bool, wait: float
) -> None:
    costs = CostModel({Bucket(1, tokens, tokens): 1.0 for tokens in (1, 2, 4)})
    costs.drafts = DraftCosts(8, (draft_seconds,))
    estimate = AcceptanceEstimate([accepted] * 3)
    assert costs.wait_seconds([estimate], 3, must_pay=must_pay) == pytest.approx(wait)


def test_waiting_for_a_batch_is_judged_together() -> None:
    costs = CostModel({Bucket(4, tokens, tokens): 1.0 for tokens in (4, 8, 16)})
    costs.drafts = DraftCosts(8, (9.0,))
    estimates = [AcceptanceEstimate([share]) for share in (1.0, 1.0, 0.0)]
    # Five tokens instead of three, in a step as long.
    assert costs.wait_seconds(estimates, 1, must_pay=True) == pytest.approx(5 / 3 - 1)


SIZES = (1, 2, 4, 8, 16, 32)
# Half a second for each token that is drafted.
PADDED = CostModel({Bucket(8, size, size): 1.0 + size for size in SIZES})
PADDED.drafts = DraftCosts(8, (3.5,), (0.5,))


def random_estimate(rng: random.Random, positions: int) -> AcceptanceEstimate:
    """Return an estimate of drafts that have a first token and may end after each."""
    going_on = [1.0, *(rng.choice([0.2, 0.5, 0.8, 1.0]) for _ in range(positions - 1))]
    return AcceptanceEstimate([rng.random() for _ in range(positions)], going_on=going_on)


def chances(estimate: AcceptanceEstimate, length: int) -> list[float]:
    """Return how likely a draft of at most `length` tokens has 0, 1, ... of them."""
    draft_survival = [1.0, *estimate.draft_survival(length), 0.0]
    return [after - before for after, before in itertools.pairwise(draft_survival)]


@pytest.mark.parametrize("seed", range(8))
def test_a_lone_draft_that_ends_early_is_verified_in_a_smaller_step(seed: int) -> None:
    estimate = random_estimate(random.Random(seed), 6)
    steps = PADDED.expected_steps([estimate], 6)
    for length in range(7):
        likely = chances(estimate, length)
        expected = sum(
            chance * PADDED.verify_seconds(1, 1 + count) for count, chance in enumerate(likely)
        )
        assert steps.verify_seconds[length] == pytest.approx(expected)
    drafts = expected_drafts([estimate], 6)
    assert steps.draft_seconds == pytest.approx(0.5 * drafts.passes)
    seconds = steps.verify_seconds + steps.draft_seconds
    assert steps.worth == pytest.approx((steps.gains / seconds).tolist())
    assert steps.gains == pytest.approx(1.0 + drafts.accepted)


def test_an_error_of_rounding_makes_no_step_larger() -> None:
    costs = CostModel({Bucket(16, size, size): float(size) for size in (16, 32)})
    # They sum up to 3.0000000000000004 drafted tokens.
    estimates = [AcceptanceEstimate([0.5], going_on=[3 / 13])] * 13
    assert costs.expected_steps(estimates, 1).verify_seconds[1] == 16.0


@pytest.mark.parametrize("rows", [1, 3])
def test_whole_drafts_take_what_their_size_takes(rows: int) -> None:
    estimates = [AcceptanceEstimate([0.1, 0.2, 0.3, 0.4]) for _ in range(rows)]
    steps = PADDED.expected_steps(estimates, 4)
    lengths = range(5)
    expected = [PADDED.verify_seconds(rows, rows * (1 + length)) for length in lengths]
    assert steps.verify_seconds == pytest.approx(expected)


def test_drafts_of_several_sequences_take_what_their_mean_does() -> None:
    estimates = [AcceptanceEstimate([0.5] * 4, going_on=[1.0, 0.5]) for _ in range(8)]
    steps = PADDED.expected_steps(estimates, 4)
    # Half of the drafts have four tokens, the others one: 8 + 20 of at most 40.
    assert steps.verify_seconds[4] == PADDED.verify_seconds(8, 28)
