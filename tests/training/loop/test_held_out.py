"""Held-out rows stay apart; replaying acceptance gives what decoding step by step would give."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.loop.held_out import split_validation, walk


def decode(completion: list[int], drafts: list[list[int]]) -> list[int]:
    """Decode `completion` speculatively; `drafts[i]` is drafted when i + 1 tokens are known."""
    slots = len(drafts[0])
    text, gained = completion[:1], []
    while len(text) + slots <= len(completion):
        new: list[int] = []
        for token in drafts[len(text) - 1]:
            if token != completion[len(text) + len(new)]:
                break
            new.append(token)
        # The target's own token comes for free; past the completion's end nobody knows which.
        after = len(text) + len(new)
        new.append(completion[after] if after < len(completion) else -1)
        text += new
        gained.append(len(new))
    return gained


def matches_of(completion: list[int], drafts: list[list[int]]) -> np.ndarray:
    padded = completion + [-1] * len(drafts[0])
    return np.array(
        [
            [token == padded[anchor + 1 + slot] for slot, token in enumerate(draft)]
            for anchor, draft in enumerate(drafts)
        ]
    )


@settings(max_examples=200)
@given(st.data(), st.integers(1, 40), st.integers(1, 6), st.integers(1, 3))
def test_walk_equals_decoding(data: st.DataObject, length: int, slots: int, alphabet: int) -> None:
    tokens = st.integers(0, alphabet - 1)
    completion = data.draw(st.lists(tokens, min_size=length, max_size=length))
    draft = st.lists(tokens, min_size=slots, max_size=slots)
    drafts = data.draw(st.lists(draft, min_size=length, max_size=length))
    assert walk(matches_of(completion, drafts), length) == decode(completion, drafts)


def row(number: int, prompt: tuple[int, ...], source: str = "math") -> CorpusRow:
    return CorpusRow(f"r{number}", source, 0.0, prompt, (number % 50, 7))


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(prompts, st.sampled_from(["math", "code"])), min_size=1, max_size=40),
    st.floats(0, 1),
)
def test_sides_are_apart(drawn: list[tuple[tuple[int, ...], str]], share: float) -> None:
    rows = [row(number, prompt, source) for number, (prompt, source) in enumerate(drawn)]
    training, held_out = split_validation(rows, round(share * len(rows)))
    assert sorted(training + held_out) == list(range(len(rows)))
    sides = [{rows[number].prompt for number in side} for side in (training, held_out)]
    assert not sides[0] & sides[1]


@settings(max_examples=100)
@given(
    st.lists(prompts, min_size=1, max_size=30),
    st.lists(prompts, max_size=30),
    st.integers(0, 10),
)
def test_added_rows_hold_out_nothing_that_was_trained_on(
    first: list[tuple[int, ...]], added: list[tuple[int, ...]], count: int
) -> None:
    count = min(count, len(first))
    rows = [row(number, prompt) for number, prompt in enumerate(first)]
    more = [*rows, *(row(len(rows) + number, prompt) for number, prompt in enumerate(added))]
    before, _ = split_validation(rows, count)
    after, _ = split_validation(more, count)
    assert set(before) <= set(after)


def test_every_source_is_held_out_by_its_share() -> None:
    rows = [row(n, (n, n + 1), ("math", "code", "chat")[n % 3 if n < 60 else 0]) for n in range(90)]
    training, held_out = split_validation(rows, 18)
    assert len(training) == 72
    sources = [rows[number].source for number in held_out]
    assert {source: sources.count(source) for source in set(sources)} == {
        "math": 10,
        "code": 4,
        "chat": 4,
    }
    # The same rows in another order have the same sides.
    order = np.random.default_rng(0).permutation(90).tolist()
    _, shuffled = split_validation([rows[number] for number in order], 18)
    assert sorted(order[number] for number in shuffled) == held_out
