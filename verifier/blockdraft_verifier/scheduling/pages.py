"""Ownership of the KV cache's pages; bookkeeping for the arrays of `device/cache.py`.

A full page whose tokens are all committed is named by a hash of its tokens and of everything
before them, the salt of a tenant and the number of an adapter included. When its last owner leaves,
a named page keeps its contents and can be taken over by a later sequence with the same prefix,
until the space is needed (least recently used first).
Source of the scheme: vLLM's automatic prefix caching.
"""

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence


def page_hash(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the name of a page holding `token_ids` after a prefix named `previous`.

    A cryptographic hash, because a collision would change a request's output.
    """
    return hashlib.blake2b(previous + array("q", token_ids).tobytes(), digest_size=16).digest()


def root_name(salt: bytes, adapter: int = 0) -> bytes:
    """Return the name of the prefix before a sequence's first page; empty without either."""
    if not salt and not adapter:
        return b""
    return hashlib.blake2b(repr((salt, adapter)).encode(), digest_size=16, person=b"salt").digest()


class PageAllocator:
    """Hands out pages, counts their owners and remembers their contents."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Own `num_pages` pages of `page_size` tokens each; both must be positive."""
        if num_pages <= 0 or page_size <= 0:
            raise ValueError(f"need positive sizes, got {num_pages=} {page_size=}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = deque(range(num_pages))
        self._owners = [0] * num_pages
        self._name_of_page: dict[int, bytes] = {}
        self._page_of_name: dict[bytes, int] = {}
        # Named pages without an owner, least recently used first.
        self._reclaimable: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free) + len(self._reclaimable)

    @property
    def used(self) -> int:
        """Pages with at least one owner."""
        return self.num_pages - self.available

    def allocate(self, count: int) -> list[int]:
        """Return `count` pages owned by the caller, which must be `available`."""
        pages = []
        for _ in range(count):
            if not self._free:
                page, _ = self._reclaimable.popitem(last=False)
                self._forget(page)
                self._free.append(page)
            page = self._free.popleft()
            self._owners[page] = 1
            pages.append(page)
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Give up one ownership of each of `pages`."""
        # Last page first: a prefix is worth more than what follows it.
        for page in reversed(pages):
            if self._owners[page] <= 0:
                raise RuntimeError(f"page {page} released without an owner")
            self._owners[page] -= 1
            if self._owners[page] == 0:
                if page in self._name_of_page:
                    self._reclaimable[page] = None
                else:
                    self._free.append(page)

    def name(self, page: int, name: bytes) -> None:
        """Remember that `page` holds the tokens named `name`; its contents are final from now."""
        if name not in self._page_of_name and page not in self._name_of_page:
            self._page_of_name[name] = page
            self._name_of_page[page] = name

    def take_prefix(
        self,
        token_ids: Sequence[int],
        root: bytes = b"",
        may_end: Callable[[bytes], bool] = lambda name: True,
    ) -> tuple[list[int], list[bytes]]:
        """Own the pages of the longest proper prefix that is known; return them and their names.

        At least one token is left out, because its forward pass gives the next one. `may_end` says
        whether a prefix may end with a page.
        """
        pages: list[int] = []
        names: list[bytes] = []
        name = root
        for start in range(0, len(token_ids) - self.page_size, self.page_size):
            name = page_hash(name, token_ids[start : start + self.page_size])
            page = self._page_of_name.get(name)
            if page is None:
                break
            pages.append(page)
            names.append(name)
        while names and not may_end(names[-1]):
            del pages[-1], names[-1]
        for page in pages:
            self._owners[page] += 1
            self._reclaimable.pop(page, None)
        return pages, names

    def forget_contents(self) -> None:
        """Forget all names; pages with owners stay theirs."""
        self._free.extend(self._reclaimable)
        self._reclaimable.clear()
        self._name_of_page.clear()
        self._page_of_name.clear()

    def _forget(self, page: int) -> None:
        del self._page_of_name[self._name_of_page.pop(page)]
