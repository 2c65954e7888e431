"""Which source is taken for which sequence, by made-up costs."""

import itertools
import random

import pytest

from blockdraft_verifier.device.buckets import Bucket, all_buckets
from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.costs import DraftCosts
from blockdraft_verifier.engine.shares import Offer, Share, fastest, longest, with_probes

SIZES = (1, 2, 4, 8, 16)


def model(seconds: dict[int, float], draft_seconds: float = 0.5) -> CostModel:
    costs = CostModel({Bucket(1, tokens, tokens): seconds[tokens] for tokens in seconds})
    costs.drafts = DraftCosts(8, (draft_seconds,))
    return costs


FLAT = dict.fromkeys(SIZES, 1.0)
LINEAR = {size: float(size) for size in SIZES}
# As measured on CPU.
RISING = {1: 1.0, 2: 1.26, 4: 1.31, 8: 1.54, 16: 1.9}


def survival(rate: float, count: int = 15) -> list[float]:
    return [rate**depth for depth in range(1, count + 1)]


def whole(length: int) -> list[float]:
    """Say of a draft that it surely has so many tokens."""
    return [1.0] * length


def choose(costs: CostModel, *offers: Offer, must_draft: bool = False) -> list[Share]:
    return fastest(costs, offers, must_draft=must_draft)


def test_what_costs_nothing_to_verify_is_verified() -> None:
    assert choose(model(FLAT), Offer(survival(0.1))) == [Share(15)]


def test_what_costs_as_much_as_it_gains_is_not() -> None:
    assert choose(model(LINEAR), Offer(survival(0.9))) == [Share()]


def test_a_step_is_filled_and_no_larger_one_begun_for_little() -> None:
    assert choose(model(RISING), Offer(survival(0.98))) == [Share(15)]
    assert choose(model(RISING), Offer(survival(0.5))) == [Share(3)]
    assert choose(model(RISING), Offer(survival(0.15))) == [Share()]


def test_the_free_source_wins_a_tie_and_the_better_one_else() -> None:
    found = survival(0.8, 7)
    gain = sum(found)
    tie = Offer(found, whole(7), gain)
    assert choose(model(FLAT, 0.0), tie) == [Share(7)]
    better = Offer(found, whole(7), gain + 0.1)
    assert choose(model(FLAT, 0.0), better) == [Share(draft=7)]
    # Where a step would be worth as much without the drafter, it is not asked.
    assert choose(model(FLAT, 1.0), Offer([], whole(7), 1.0)) == [Share()]


def test_an_error_of_rounding_makes_no_step_larger() -> None:
    costs = CostModel({Bucket(16, 16, 16): 1.0, Bucket(16, 32, 32): 10.0})
    # They sum up to 3.0000000000000004 drafted tokens.
    assert choose(costs, *[Offer([], [3 / 13], 0.2)] * 13) == [Share(draft=1)] * 13


def test_the_time_of_drafting_counts() -> None:
    offer = Offer(survival(0.5, 7), whole(7), 1.5)
    assert choose(model(FLAT, 0.1), offer) == [Share(draft=7)]
    assert choose(model(FLAT, 0.5), offer) == [Share(7)]
    assert choose(model(FLAT, 0.5), offer, must_draft=True) == [Share(draft=7)]


def test_drafts_that_end_early_leave_room_and_take_less_time() -> None:
    # One pass for each of 7 tokens, 0.1 s each; half of the drafts have but one.
    costs = model(FLAT)
    costs.drafts = DraftCosts(8, (0.7,), (0.1,))
    ending = [1.0, *[0.5] * 6]
    found = survival(0.5, 7)
    # Prompt lookup gains 1.99 tokens in 1 s; drafts 2.4 in 1.4 s, 3 in 1.7 s, and 3 in 1.4 s.
    assert choose(costs, Offer(found, ending, 1.4)) == [Share(7)]
    assert choose(costs, Offer(found, whole(7), 2.0)) == [Share(7)]
    assert choose(costs, Offer(found, ending, 2.0)) == [Share(draft=7)]
    # Beside one of 1 + 4 tokens on average, another finds room for 3 in a step of 9 or less.
    costs = CostModel({Bucket(2, 9, 9): 1.0, Bucket(2, 16, 16): 3.0})
    costs.drafts = DraftCosts(8, (0.0, 0.0))
    beside = Offer(survival(0.9, 3))
    both = [Offer([], ending, 2.0), beside]
    assert fastest(costs, both, must_draft=True) == [Share(draft=7), Share(3)]
    both = [Offer([], whole(7), 2.0), beside]
    assert fastest(costs, both, must_draft=True) == [Share(draft=7), Share()]


def test_of_several_sequences_the_likeliest_tokens_fill_the_step() -> None:
    sure, likely, poor = survival(1.0, 3), survival(0.9, 3), survival(0.05, 3)
    offers = [Offer(poor), Offer(sure), Offer([]), Offer(likely)]
    costs = CostModel({Bucket(4, 4, 4): 1.0, Bucket(4, 8, 8): 1.1, Bucket(4, 16, 16): 3.0})
    assert fastest(costs, offers, must_draft=False) == [Share(), Share(3), Share(), Share(1)]


def test_one_sequence_is_drafted_for_while_another_copies() -> None:
    offers = [
        Offer(survival(0.98, 7), whole(7), 2.0),
        Offer([], whole(7), 2.0),
        Offer(survival(0.1, 7), whole(7), 2.0),
    ]
    costs = CostModel({Bucket(4, size, size): 1.0 for size in (4, 8, 16, 32)})
    costs.drafts = DraftCosts(8, (0.1, 0.1, 0.1))
    assert fastest(costs, offers, must_draft=False) == [Share(7), Share(draft=7), Share(draft=7)]


def test_without_costs_the_better_source_gives_all_it_has() -> None:
    offers = [
        Offer(survival(0.5, 3)),
        Offer(survival(0.5, 3), whole(2), 1.0),
        Offer([], whole(2), 1.0),
    ]
    assert longest(offers) == [Share(3), Share(draft=2), Share(draft=2)]


def test_only_what_promises_a_token_is_probed() -> None:
    offers = [Offer(survival(0.2)), Offer(survival(0.9, 3)), Offer(survival(0.9), whole(2), 1.0)]
    tried = with_probes([Share(), Share(), Share(draft=2)], offers)
    assert tried == [Share(), Share(3), Share(draft=2)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_could_be_chosen_is_faster(seed: int) -> None:
    """All ways to share a step of few sequences, one after another."""
    rng = random.Random(seed)
    rows = rng.randint(1, 3)
    buckets = all_buckets(4, 32, 4)
    seconds, steps = {}, 0.0
    for bucket in sorted(buckets, key=lambda bucket: (bucket.tokens, bucket.rows)):
        steps += rng.random()
        seconds[bucket] = 1.0 + steps
    costs = CostModel(seconds)
    offers = []
    for _ in range(rows):
        found = survival(rng.random(), rng.choice([0, 3]))
        offers.append(Offer(found))

    def rate(counts: tuple[int, ...]) -> float:
        gain = sum(1 + sum(o.survival[:count]) for o, count in zip(offers, counts, strict=True))
        return gain / costs.verify_seconds(rows, rows + sum(counts))

    ways = itertools.product(*(range(len(offer.survival) + 1) for offer in offers))
    chosen = fastest(costs, offers, must_draft=False)
    assert rate(tuple(share.prompt_lookup for share in chosen)) == pytest.approx(
        max(map(rate, ways))
    )
