"""The page allocator against a simple model of which sequence owns which page and what it holds."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blockdraft_verifier.scheduling.pages import PageAllocator, page_hash, root_name

NUM_PAGES = 6
PAGE_SIZE = 2
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def prefix_name(tokens: list[int]) -> bytes:
    """Return the name of the last page of `tokens`, which fill whole pages."""
    name = b""
    for start in range(0, len(tokens), PAGE_SIZE):
        name = page_hash(name, tokens[start : start + PAGE_SIZE])
    return name


class PagesMachine(RuleBasedStateMachine):
    """Sequences take, fill, name, share and release pages.

    The model: a list of holders (pages and the tokens in them), the prefix each named page holds,
    and the order in which ownerless named pages were given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(NUM_PAGES, PAGE_SIZE)
        self.holders: list[list[int]] = []
        self.prefix_of: dict[int, tuple[int, ...]] = {}
        self.given_up: list[int] = []

    def owned(self) -> set[int]:
        return {page for holder in self.holders for page in holder}

    def take_over(self, new: list[int]) -> None:
        """Reclaim in the model: ownerless pages that the allocator handed out."""
        reclaimed = [page for page in new if page in self.prefix_of]
        assert reclaimed == self.given_up[: len(reclaimed)], "not the least recently used first"
        self.given_up = self.given_up[len(reclaimed) :]
        for page in reclaimed:
            del self.prefix_of[page]

    @rule(tokens=TOKENS)
    def start_sequence(self, tokens: list[int]) -> None:
        """Take what is cached, allocate the rest, name the full pages."""
        known = {prefix: page for page, prefix in self.prefix_of.items()}
        expected = []
        for end in range(PAGE_SIZE, len(tokens), PAGE_SIZE):
            if tuple(tokens[:end]) not in known:
                break
            expected.append(known[tuple(tokens[:end])])
        taken, names = self.pages.take_prefix(tokens)
        assert taken == expected
        assert len(taken) * PAGE_SIZE < len(tokens)
        assert names == [prefix_name(tokens[: (i + 1) * PAGE_SIZE]) for i in range(len(taken))]
        self.given_up = [page for page in self.given_up if page not in taken]
        holder = list(taken)
        self.holders.append(holder)
        missing = -(-len(tokens) // PAGE_SIZE) - len(taken)
        if missing > self.pages.available:
            return
        new = self.pages.allocate(missing)
        assert not self.owned() & set(new), "a page was owned twice"
        assert len(set(new)) == missing
        self.take_over(new)
        holder.extend(new)
        for index in range(len(taken), len(tokens) // PAGE_SIZE):
            prefix = tuple(tokens[: (index + 1) * PAGE_SIZE])
            self.pages.name(holder[index], prefix_name(list(prefix)))
            # The first page with these contents stays the one that is found.
            if prefix not in self.prefix_of.values():
                self.prefix_of[holder[index]] = prefix

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def end_sequence(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pages.release(holder)
        still_owned = self.owned()
        for page in reversed(holder):
            if page in self.prefix_of and page not in still_owned:
                self.given_up.append(page)

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def release_without_owner(self, page: int) -> None:
        if page not in self.owned():
            with pytest.raises(RuntimeError, match="without an owner"):
                self.pages.release([page])

    @rule()
    def forget_contents(self) -> None:
        self.pages.forget_contents()
        self.prefix_of.clear()
        self.given_up.clear()

    @invariant()
    def counts_add_up(self) -> None:
        owned = self.owned()
        assert self.pages.used == len(owned)
        assert self.pages.available == NUM_PAGES - len(owned)


PagesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, derandomize=True)
TestPages = PagesMachine.TestCase


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_sizes_must_be_positive(num_pages: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        PageAllocator(num_pages, page_size)


def test_the_name_of_a_page_depends_on_everything_before_it() -> None:
    assert page_hash(b"", [1, 2]) != page_hash(b"", [2, 1])
    assert page_hash(page_hash(b"", [1, 2]), [3]) != page_hash(page_hash(b"", [2, 1]), [3])
    assert page_hash(b"", [1, 256]) != page_hash(b"", [257, 0])


def test_prefixes_of_different_roots_share_nothing() -> None:
    roots = [root_name(salt) for salt in (b"", b"a", b"b", b"a" * 64)]
    assert roots[0] == b""
    tokens = list(range(10, 19))
    names = [page_hash(root, tokens[:PAGE_SIZE]) for root in roots]
    assert len(set(names)) == len(roots)
    # Nor is a root the name of a page, whatever the salt.
    assert root_name(names[0]) not in (*names, *roots)
    pages = PageAllocator(NUM_PAGES, PAGE_SIZE)
    held = pages.allocate(len(roots))
    for page, name in zip(held, names, strict=True):
        pages.name(page, name)
    for page, root in zip(held, roots, strict=True):
        assert pages.take_prefix(tokens, root)[0] == [page]
