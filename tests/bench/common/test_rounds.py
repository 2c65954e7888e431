"""Samples taken in rounds."""

from collections.abc import Callable

from blockdraft_bench.common.rounds import UNCOUNTED_ROUNDS, sample_in_rounds


def test_every_point_has_its_turn_in_every_round() -> None:
    order: list[str] = []

    def measure(name: str) -> Callable[[], int]:
        def sample() -> int:
            order.append(name)
            return order.count(name)

        return sample

    names = "abcde"
    taken: list[None] = []
    samples = sample_in_rounds(
        {name: measure(name) for name in names}, 6, lambda: taken.append(None)
    )
    # The first rounds are not among the samples.
    expected = list(range(UNCOUNTED_ROUNDS + 1, UNCOUNTED_ROUNDS + 7))
    assert samples == {name: expected for name in names}
    assert len(taken) == len(order) == len(names) * (UNCOUNTED_ROUNDS + 6)
    rounds = ["".join(order[i : i + 5]) for i in range(0, len(order), 5)]
    assert all(sorted(each) == list(names) for each in rounds)
    assert len(set(rounds)) > 1
