"""Earlier occurrences, what followed them, and whether it came again."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_verifier import prompt_lookup as module
from blockdraft_verifier.prompt_lookup import (
    LONGEST_MATCH,
    SHORTEST_MATCH,
    Match,
    Outcome,
    PromptLookup,
)

ALL = 10**9
TOKENS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), max_size=120))


def reference(tokens: list[int]) -> Match | None:
    """Return the longest earlier occurrence of the end of `tokens`, of equals the latest."""
    end, best = len(tokens), None
    for position in range(1, end):
        length = 0
        while (
            length < min(position, LONGEST_MATCH)
            and tokens[position - length - 1] == tokens[end - length - 1]
        ):
            length += 1
        if length >= max(SHORTEST_MATCH, best.length if best else 0):
            best = Match(length, position, end)
    return best


def searched(prompt_lookup: PromptLookup, candidates: int = module.CANDIDATES) -> Match | None:
    """Index all that there is, and return what is found among so many candidates."""
    prompt_lookup.index(ALL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "CANDIDATES", candidates)
        prompt_lookup.search()
    return prompt_lookup.match


@given(TOKENS, st.data())
def test_the_longest_and_latest_occurrence_is_found(tokens: list[int], data: st.DataObject) -> None:
    assert searched(PromptLookup(tokens), ALL) == reference(tokens)
    # Growing and indexing in pieces changes nothing.
    grown: list[int] = []
    prompt_lookup = PromptLookup(grown)
    for token in tokens:
        grown.append(token)
        prompt_lookup.index(data.draw(st.integers(0, 3)))
    while prompt_lookup.behind:
        assert prompt_lookup.index(2) <= 2
    assert searched(prompt_lookup, ALL) == reference(tokens)


@given(TOKENS, st.integers(1, 8))
def test_a_bounded_search_tells_no_lies(tokens: list[int], candidates: int) -> None:
    found, longest = searched(PromptLookup(tokens), candidates), reference(tokens)
    assert (found is None) == (longest is None)
    if found is not None and longest is not None:
        assert SHORTEST_MATCH <= found.length <= longest.length
        end, position = found.end, found.position
        assert end == len(tokens) > position
        assert tokens[position - found.length : position] == tokens[end - found.length :]


def test_what_is_known_is_found_however_far_back_it_is() -> None:
    rng = random.Random(0)
    text = [rng.randrange(2, 100) for _ in range(20)]
    # The pair that comes at the end occurs more often since than a search compares.
    tokens = [*text, *([0, *text[8:10]] * 40), *text[:8]]
    prompt_lookup = PromptLookup(tokens)
    assert searched(prompt_lookup, 4) == Match(8, 8, len(tokens))
    tokens += text[8:10]
    far = Match(10, 10, len(tokens))
    assert searched(prompt_lookup, 4) == far
    assert searched(PromptLookup(tokens), 4) != far


@given(TOKENS, st.integers(0, 40))
def test_a_continuation_is_what_followed_again_and_again(tokens: list[int], count: int) -> None:
    prompt_lookup = PromptLookup(tokens)
    match = searched(prompt_lookup)
    if match is None:
        assert prompt_lookup.continuation(count) == ()
    else:
        grown = list(tokens)
        for offset in range(count):
            grown.append(grown[match.position + offset])
        assert list(prompt_lookup.continuation(count)) == grown[len(tokens) :]


class Counting(list[int]):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("text", ["random", "same", "cycle"])
def test_memory_is_linear_and_a_search_is_bounded(text: str) -> None:
    rng = random.Random(0)
    made: dict[str, Callable[[int], int]] = {
        "random": lambda i: rng.randrange(50),
        "same": lambda i: 7,
        "cycle": lambda i: i % 9,
    }
    tokens = Counting(made[text](i) for i in range(4000))
    prompt_lookup = PromptLookup(tokens)
    prompt_lookup.index(ALL)
    assert len(prompt_lookup._earlier) == len(tokens) + 1
    assert len(prompt_lookup._last) <= len(tokens)
    tokens.reads = 0
    prompt_lookup.search()
    assert tokens.reads <= 4 + 2 * module.CANDIDATES * (LONGEST_MATCH + 1)


def test_an_outcome_says_how_far_a_prediction_went() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 1, 2]
    prompt_lookup = PromptLookup(tokens)
    prompt_lookup.index(ALL)
    assert prompt_lookup.search() is None
    assert prompt_lookup.match is not None
    assert prompt_lookup.match.length == 2
    assert prompt_lookup.continuation(3) == (3, 4, 5)
    # While nothing comes, nothing is learned.
    assert prompt_lookup.search() is None
    assert prompt_lookup.continuation(1) == (3,)
    tokens += [3, 4, 8]
    assert prompt_lookup.search() == Outcome(2, right=2, missed=True)
    assert prompt_lookup.match is None


def test_a_match_is_followed_though_nothing_was_indexed_since() -> None:
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(80)]
    tokens = [*text, *text[:3]]
    prompt_lookup = PromptLookup(tokens)
    match = searched(prompt_lookup)
    for step in range(3, 70, 4):
        assert match is not None
        assert match.length == min(step, LONGEST_MATCH)
        assert prompt_lookup.continuation(4) == tuple(text[step : step + 4])
        tokens += text[step : step + 4]
        assert prompt_lookup.search() == Outcome(min(step, LONGEST_MATCH), right=4, missed=False)
        match = prompt_lookup.match


@given(
    st.lists(st.integers(0, 2), min_size=3, max_size=80),
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
)
def test_outcomes_agree_with_what_was_predicted(text: list[int], steps: list[int]) -> None:
    tokens = text[:3]
    prompt_lookup = PromptLookup(tokens)
    match = searched(prompt_lookup)
    for step in steps:
        new = text[len(tokens) : len(tokens) + step]
        predicted = prompt_lookup.continuation(len(new))
        tokens += new
        prompt_lookup.index(len(new))
        outcome = prompt_lookup.search()
        if match is None or not new:
            assert outcome is None
        else:
            right = next((i for i, token in enumerate(new) if predicted[i] != token), len(new))
            assert outcome == Outcome(match.length, right, missed=right < len(new))
        match = prompt_lookup.match
