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
    MOST_TENANTS,
    SHORTEST_MATCH,
    IndexedText,
    Match,
    PredictionOutcome,
    PromptLookup,
    RecentCompletions,
    RecentOfTenants,
)

ALL = 10**9
TOKENS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), max_size=120))


def reference(tokens: list[int], text: list[int] | None = None) -> tuple[int, int, int] | None:
    """Return the longest occurrence of the end of `tokens`, of equals the latest.

    It lies in another text, or earlier in `tokens`. Returned are its length and end, and the number
    of tokens.
    """
    end, best = len(tokens), None
    searched, last = (tokens, end - 1) if text is None else (text, len(text))
    for position in range(1, last + 1):
        length = 0
        while (
            length < min(position, end, LONGEST_MATCH)
            and searched[position - length - 1] == tokens[end - length - 1]
        ):
            length += 1
        if length >= max(SHORTEST_MATCH, best[0] if best else 0):
            best = (length, position, end)
    return best


class Own:
    """Prompt lookup in a sequence itself."""

    def __init__(self, tokens: list[int]) -> None:
        self.text = IndexedText(tokens)
        self.prompt_lookup = PromptLookup(tokens)

    def search(self, candidates: int = module.CANDIDATES) -> PredictionOutcome | None:
        """Search among so many candidates."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "CANDIDATES", candidates)
            return self.prompt_lookup.search(self.text)

    def found(self, candidates: int = module.CANDIDATES) -> tuple[int, int, int] | None:
        """Index all that there is; return the match's length, position and end."""
        self.text.index(ALL)
        self.search(candidates)
        return fields(self.prompt_lookup.match)


def fields(match: Match | None) -> tuple[int, int, int] | None:
    return None if match is None else (match.length, match.position, match.end)


@given(TOKENS, st.data())
def test_the_longest_and_latest_occurrence_is_found(tokens: list[int], data: st.DataObject) -> None:
    assert Own(tokens).found(ALL) == reference(tokens)
    # Growing and indexing in pieces changes nothing.
    grown: list[int] = []
    own = Own(grown)
    for token in tokens:
        grown.append(token)
        own.text.index(data.draw(st.integers(0, 3)))
    while own.text.behind:
        assert own.text.index(2) <= 2
    assert own.found(ALL) == reference(tokens)


@given(TOKENS, st.integers(1, 8))
def test_a_bounded_search_tells_no_lies(tokens: list[int], candidates: int) -> None:
    found, longest = Own(tokens).found(candidates), reference(tokens)
    assert (found is None) == (longest is None)
    if found is not None and longest is not None:
        length, position, end = found
        assert SHORTEST_MATCH <= length <= longest[0]
        assert end == len(tokens) > position
        assert tokens[position - length : position] == tokens[end - length :]


def test_what_is_known_is_found_however_far_back_it_is() -> None:
    rng = random.Random(0)
    text = [rng.randrange(2, 100) for _ in range(20)]
    # The pair that comes at the end occurs more often since than a search compares.
    tokens = [*text, *([0, *text[8:10]] * 40), *text[:8]]
    own = Own(tokens)
    assert own.found(4) == (8, 8, len(tokens))
    tokens += text[8:10]
    far = (10, 10, len(tokens))
    assert own.found(4) == far
    assert Own(tokens).found(4) != far


@given(TOKENS, st.integers(0, 40))
def test_a_continuation_is_what_followed_again_and_again(tokens: list[int], count: int) -> None:
    own = Own(tokens)
    match = own.found()
    if match is None:
        assert own.prompt_lookup.continuation(count) == ()
    else:
        grown = list(tokens)
        for offset in range(count):
            grown.append(grown[match[1] + offset])
        assert list(own.prompt_lookup.continuation(count)) == grown[len(tokens) :]


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
    own = Own(tokens)
    own.text.index(ALL)
    assert len(own.text._earlier) == len(tokens) + 1
    assert len(own.text._last) <= len(tokens)
    tokens.reads = 0
    own.search()
    assert tokens.reads <= 4 + 2 * module.CANDIDATES * (LONGEST_MATCH + 1)


def test_an_outcome_says_how_far_a_prediction_went() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 1, 2]
    own = Own(tokens)
    own.text.index(ALL)
    assert own.search() is None
    assert fields(own.prompt_lookup.match) == (2, 2, 8)
    assert own.prompt_lookup.continuation(3) == (3, 4, 5)
    # While nothing comes, nothing is learned.
    assert own.search() is None
    assert own.prompt_lookup.continuation(1) == (3,)
    tokens += [3, 4, 8]
    assert own.search() == PredictionOutcome(2, right=2, missed=True)
    assert own.prompt_lookup.match is None


def test_a_match_is_followed_though_nothing_was_indexed_since() -> None:
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(80)]
    tokens = [*text, *text[:3]]
    own = Own(tokens)
    own.found()
    for step in range(3, 70, 4):
        match = own.prompt_lookup.match
        assert match is not None
        assert match.length == min(step, LONGEST_MATCH)
        assert own.prompt_lookup.continuation(4) == tuple(text[step : step + 4])
        tokens += text[step : step + 4]
        assert own.search() == PredictionOutcome(min(step, LONGEST_MATCH), right=4, missed=False)


@given(
    st.lists(st.integers(0, 2), min_size=3, max_size=80),
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
)
def test_outcomes_agree_with_what_was_predicted(text: list[int], steps: list[int]) -> None:
    tokens = text[:3]
    own = Own(tokens)
    own.found()
    for step in steps:
        match = own.prompt_lookup.match
        new = text[len(tokens) : len(tokens) + step]
        predicted = own.prompt_lookup.continuation(len(new))
        tokens += new
        own.text.index(len(new))
        outcome = own.search()
        if match is None or not new:
            assert outcome is None
        else:
            right = next((i for i, token in enumerate(new) if predicted[i] != token), len(new))
            assert outcome == PredictionOutcome(match.length, right, missed=right < len(new))


COMPLETIONS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=6)


@given(COMPLETIONS, st.lists(st.integers(0, 2), max_size=30), st.integers(0, 40))
def test_recent_completions_are_searched_each_for_itself(
    completions: list[list[int]], tokens: list[int], count: int
) -> None:
    recent, joined = RecentCompletions(1000), list[int]()
    for completion in completions:
        recent.add(completion)
        joined += [*completion, -1]
    recent.text.index(ALL)
    prompt_lookup = PromptLookup(tokens)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "CANDIDATES", ALL)
        prompt_lookup.search(recent.text)
    expected = reference(tokens, joined)
    assert fields(prompt_lookup.match) == expected
    following = joined[expected[1] :] if expected else [-1]
    assert list(prompt_lookup.continuation(count)) == following[: min(count, following.index(-1))]


@given(COMPLETIONS, st.lists(st.integers(0, 2), min_size=2, max_size=30), st.integers(1, 4))
def test_outcomes_in_recent_completions_end_with_them(
    completions: list[list[int]], text: list[int], step: int
) -> None:
    recent = RecentCompletions(40)
    tokens = text[:2]
    prompt_lookup = PromptLookup(tokens)
    for completion in [*completions, []]:
        recent.text.index(ALL)
        prompt_lookup.search(recent.text)
        predicted = prompt_lookup.continuation(step)
        match, new = prompt_lookup.match, text[len(tokens) : len(tokens) + step]
        tokens += new
        # It is followed even where another text has taken the place of the one it is in.
        recent.add(completion)
        outcome = prompt_lookup.search(recent.text)
        if match is None or not new:
            assert outcome is None
        else:
            right = next(
                (i for i, token in enumerate(new) if predicted[i : i + 1] != (token,)), len(new)
            )
            assert outcome == PredictionOutcome(match.length, right, missed=right < len(new))


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 40))
def test_the_latest_completions_are_kept(lengths: list[int], limit: int) -> None:
    recent, joined = RecentCompletions(limit), list[int]()
    for number, length in enumerate(lengths):
        recent.add([number] * length)
        joined += [*[number] * length, -1]
        kept = list(recent.text.tokens)
        assert len(kept) <= limit
        assert kept == joined[len(joined) - len(kept) :]
        assert len(kept) >= min(len(joined), limit // 2)


def test_tenants_are_apart_and_the_latest_are_kept() -> None:
    tenants = RecentOfTenants(100)
    first = tenants.of(b"0")
    first.add([1, 2, 3])
    for number in range(1, MOST_TENANTS):
        assert not tenants.of(str(number).encode()).text.tokens
    assert tenants.of(b"0") is first
    tenants.of(b"another")
    assert tenants.of(b"0") is first
    assert tenants.of(b"1") is not first
    assert len(tenants._tenants) == MOST_TENANTS
