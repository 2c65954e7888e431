"""Seconds of proposals by sequences and tokens, as measured before and learned while serving."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_verifier.engine.costs import TIME_LEARNING_RATE, DraftCosts


def test_by_batch_size() -> None:
    costs = DraftCosts(8, (1.0, 2.0, 4.0))
    assert [costs.seconds(rows, 7) for rows in (1, 2, 3, 4, 5, 100)] == [1, 2, 4, 4, 4, 4]


def test_without_a_drafter_nothing_is_paid() -> None:
    costs = DraftCosts()
    costs.observe(3, 7, 1.0)
    costs.observe_transport(1.0)
    assert costs.seconds(3, 7) == 0.0


def test_nothing_drafted_costs_nothing() -> None:
    assert DraftCosts(8, (1.0,), (0.5,)).seconds(1, 0) == 0.0


def test_a_block_costs_the_same_whatever_is_wanted_of_it() -> None:
    costs = DraftCosts(8, (1.0, 2.0))
    assert [costs.seconds(2, length) for length in range(1, 8)] == [2.0] * 7


def test_a_chain_costs_by_its_tokens() -> None:
    costs = DraftCosts(6, (1.0, 2.0), (0.2, 0.8))
    assert [costs.seconds(1, length) for length in range(1, 6)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0]
    )
    assert [costs.seconds(2, length) for length in (1, 5)] == pytest.approx([0.8, 2.0])
    # More than the drafter can: lookup may ask for longer ones.
    assert costs.seconds(1, 9) == 1.0


@pytest.mark.parametrize("shortest", [(0.5, 0.5, 0.5), (1.5,), (0.2,)])
def test_measurements_that_do_not_fit_do_no_harm(shortest: tuple[float, ...]) -> None:
    """More than there are batch sizes, fewer, or a token that took longer than the block."""
    costs = DraftCosts(4, (1.0, 2.0), shortest)
    for rows in (1, 2):
        seconds = [costs.seconds(rows, length) for length in (1, 2, 3)]
        assert seconds == sorted(seconds)
        assert seconds[-1] == float(rows)
    assert DraftCosts(2, (1.0,), (0.5,)).seconds(1, 1) == 1.0


def test_transport_is_learned() -> None:
    costs = DraftCosts(8, (1.0,))
    for _ in range(400):
        costs.observe_transport(0.5)
    assert costs.seconds(1, 7) == pytest.approx(1.5)


def test_a_draft_teaches_its_own_batch_size_only() -> None:
    costs = DraftCosts(8, (1.0, 2.0, 4.0))
    costs.observe(2, 7, 3.0)
    seconds = [costs.seconds(rows, 7) for rows in (1, 2, 3, 4)]
    assert seconds == pytest.approx([1.0, 2.0 + TIME_LEARNING_RATE, 4.0, 4.0])
    costs.observe(9, 7, 5.0)
    assert costs.seconds(4, 7) == pytest.approx(4.0 + TIME_LEARNING_RATE)


@given(
    st.integers(3, 16).flatmap(
        lambda block: st.tuples(st.just(block), st.lists(st.integers(1, block - 1), min_size=1))
    )
)
def test_lengths_are_learned_from_each_other(drawn: tuple[int, list[int]]) -> None:
    """A machine half as fast as when it was measured, whatever lengths it is seen drafting."""
    block, lengths = drawn
    costs = DraftCosts(block, (float(block),), (2.0,))
    before = costs.seconds(1, block - 1)
    late = 1.0
    for length in lengths:
        costs.observe(1, length, costs.seconds(1, length) + late)
    learned = late * TIME_LEARNING_RATE * len(lengths)
    assert costs.seconds(1, block - 1) == pytest.approx(before + learned)


def test_what_is_known_can_be_shown() -> None:
    assert DraftCosts(6, (0.01, 0.02), (0.002,)).milliseconds() == {
        "draft_by_doubling_rows": [10.0, 20.0],
        "draft_token_by_doubling_rows": [2.0, 0.0],
        "transport": 0.0,
    }
