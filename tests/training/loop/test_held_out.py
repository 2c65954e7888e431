"""Replaying acceptance gives what decoding step by step would give."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_training.loop.held_out import walk


def decode(answer: list[int], drafts: list[list[int]]) -> list[int]:
    """Decode `answer` speculatively; `drafts[i]` is drafted when i + 1 tokens are known."""
    slots = len(drafts[0])
    text, gained = answer[:1], []
    while len(text) + slots <= len(answer):
        new: list[int] = []
        for token in drafts[len(text) - 1]:
            if token != answer[len(text) + len(new)]:
                break
            new.append(token)
        # The target's own token comes for free; past the answer's end nobody knows which.
        after = len(text) + len(new)
        new.append(answer[after] if after < len(answer) else -1)
        text += new
        gained.append(len(new))
    return gained


def matches_of(answer: list[int], drafts: list[list[int]]) -> np.ndarray:
    padded = answer + [-1] * len(drafts[0])
    return np.array(
        [
            [token == padded[anchor + 1 + slot] for slot, token in enumerate(draft)]
            for anchor, draft in enumerate(drafts)
        ]
    )


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 6), st.integers(1, 3))
def test_walk_equals_decoding(data: st.DataObject, length: int, slots: int, alphabet: int) -> None:
    tokens = st.integers(0, alphabet - 1)
    answer = data.draw(st.lists(tokens, min_size=length, max_size=length))
    draft = st.lists(tokens, min_size=slots, max_size=slots)
    drafts = data.draw(st.lists(draft, min_size=length, max_size=length))
    assert walk(matches_of(answer, drafts), length) == decode(answer, drafts)


def test_an_answer_shorter_than_a_block_says_nothing() -> None:
    matches = np.ones((32, 7), bool)
    assert [walk(matches, length) for length in (1, 2, 7)] == [[], [], []]
    assert walk(matches, 8) == [8]


def test_nothing_accepted_and_everything_accepted() -> None:
    assert walk(np.zeros((32, 3), bool), 10) == [1] * 7
    assert walk(np.ones((32, 3), bool), 10) == [4, 4]


def test_only_an_unbroken_run_counts() -> None:
    matches = np.zeros((10, 3), bool)
    matches[0] = [True, False, True]
    matches[2] = [False, True, True]
    assert walk(matches, 6) == [2, 1]
