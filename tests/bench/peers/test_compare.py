"""The arithmetic of the comparison, by hand."""

from collections.abc import Sequence

import pytest

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.peers.decoders import Variant
from blockdraft_bench.peers.measure import compare, peers_table

PLAIN = Variant("blockdraft", "plain", "bfloat16")
DRAFTED = Variant("blockdraft", "drafted", "bfloat16")
OTHER = Variant("llama.cpp", "plain", "Q8_0")


def completion(tokens: Sequence[int], seconds: float, *, first: int = 1) -> CompletionRecord:
    return CompletionRecord(tuple(tokens), seconds, first)


def a_round(slowdown: float, other_slowdown: float) -> dict[Variant, list[CompletionRecord]]:
    """Return completions at 2, 4 and 6 tokens a second, or as much fewer.

    Two tokens of the other's second completion came first.
    """
    return {
        PLAIN: [
            completion([1, 2, 3], 2.0 * slowdown),
            completion([4, 5, 6, 7, 8], 1.0 * slowdown),
        ],
        DRAFTED: [
            completion([1, 2, 3], 1.0 * slowdown),
            completion([4, 5, 6, 7, 8], 0.5 * slowdown),
        ],
        OTHER: [
            completion([1, 2, 9, 9], 0.25 * other_slowdown),
            completion([4, 5, 6, 7, 8], 0.75 * other_slowdown, first=2),
        ],
    }


def test_by_hand() -> None:
    # In the second round all are half as fast, in the third the other alone.
    rounds = [a_round(1, 1), a_round(2, 2), a_round(1, 2)]
    plain, drafted, other = compare(rounds, plain=PLAIN, drafted=DRAFTED)
    assert [row["decoder"] for row in (plain, drafted, other)] == [
        "blockdraft plain",
        "blockdraft drafted",
        "llama.cpp plain",
    ]
    assert [row["dtype"] for row in (plain, drafted, other)] == ["bfloat16", "bfloat16", "Q8_0"]
    assert plain["tokens_per_second"] == {"median": 2.0, "quartiles": (1.5, 2.0)}
    assert drafted["tokens_per_second"] == {"median": 4.0, "quartiles": (3.0, 4.0)}
    assert other["tokens_per_second"] == {"median": 3.0, "quartiles": (3.0, 4.5)}
    # Of the same round: what slows all down changes no ratio.
    assert drafted["plain_ratio"] == {"median": 0.5, "quartiles": (0.5, 0.5)}
    assert plain["drafted_ratio"] == {"median": 2.0, "quartiles": (2.0, 2.0)}
    ratio = other["plain_ratio"]
    assert ratio["median"] == pytest.approx(1 / 3)
    assert ratio["quartiles"] == pytest.approx((1 / 3, 1 / 2))
    assert other["drafted_ratio"]["median"] == pytest.approx(2 / 3)
    assert other["tokens"] == 27
    assert (plain["identical_share"], other["identical_share"]) == (1.0, 0.5)
    cells = "3.0 (3.0 to 4.5) | 0.33x (0.33 to 0.50) | 0.67x (0.67 to 1.00) | 50.0% |"
    assert f"| llama.cpp plain | Q8_0 | {cells}" in peers_table([other])


def test_answers_of_one_token_have_no_speed() -> None:
    completions = {variant: [completion([1], 0.0)] for variant in (PLAIN, DRAFTED)}
    plain, _ = compare([completions], plain=PLAIN, drafted=DRAFTED)
    assert plain["tokens_per_second"] is plain["plain_ratio"] is None
    assert plain["identical_share"] == 1.0
    assert "| blockdraft plain | bfloat16 | - | - | - |" in peers_table([plain])
