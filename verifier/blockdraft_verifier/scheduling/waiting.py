"""Sequences that wait to run, and which of them is next; pure Python."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from blockdraft_verifier.scheduling.sequence import Sequence


class WaitingSequences:
    """Two lanes: the background gets a slot only while no other sequence waits."""

    def __init__(self) -> None:
        """Start empty."""
        self._lanes = (_Lane(), _Lane())
        # Kept apart from them because other threads ask for it.
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """Yield the normal sequences, then the background."""
        for lane in self._lanes:
            yield from lane

    def add(self, sequence: Sequence) -> None:
        """Put a sequence behind others of its tenant, or a replay behind others that had begun."""
        self._lane(sequence).add(sequence)
        self._count += 1

    def put_back(self, sequence: Sequence) -> None:
        """Put a sequence that had run before all others of its lane."""
        self._lane(sequence).put_back(sequence)
        self._count += 1

    def first(self, running: Iterable[Sequence]) -> Sequence:
        """Return the sequence to run next, beside `running`. At least one must wait."""
        return next(lane for lane in self._lanes if lane).first(running)

    def take(self, sequence: Sequence) -> None:
        """Take out the sequence that runs next; its tenant's turn has been."""
        self._lane(sequence).take(sequence)
        self._count -= 1

    def discard(self, sequence: Sequence) -> None:
        """Take out a sequence that shall not run, if it waits; no turn changes."""
        self._count -= self._lane(sequence).discard(sequence)

    def _lane(self, sequence: Sequence) -> "_Lane":
        return self._lanes[sequence.request.background]


class _Lane:
    """A queue for each tenant, which is told by the cache salt of its requests.

    The next slot goes to the tenant that has the fewest sequences running, and among equals to the
    one whose turn was longest ago. So a tenant that sends many requests waits for its own, and one
    that sends a few waits for at most one of each other tenant. A sequence whose completion has
    begun goes before all: first the preempted ones, then those that another verifier began.
    """

    def __init__(self) -> None:
        self._begun: deque[Sequence] = deque()
        # In the order of their turns; none is empty.
        self._tenants: dict[bytes, deque[Sequence]] = {}

    def __bool__(self) -> bool:
        return bool(self._begun or self._tenants)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._begun
        for queue in self._tenants.values():
            yield from queue

    def add(self, sequence: Sequence) -> None:
        if sequence.request.replay:
            self._begun.append(sequence)
        else:
            self._tenants.setdefault(_tenant(sequence), deque()).append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        self._begun.appendleft(sequence)

    def first(self, running: Iterable[Sequence]) -> Sequence:
        if self._begun:
            return self._begun[0]
        slots = Counter(map(_tenant, running))
        # Of tenants with equally few, the first.
        return self._tenants[min(self._tenants, key=lambda tenant: slots[tenant])][0]

    def take(self, sequence: Sequence) -> None:
        if self._begun:
            self._begun.remove(sequence)
        else:
            queue = self._tenants.pop(_tenant(sequence))
            queue.remove(sequence)
            if queue:
                self._tenants[_tenant(sequence)] = queue

    def discard(self, sequence: Sequence) -> bool:
        """Take out a sequence; return whether it was there."""
        if sequence in self._begun:
            self._begun.remove(sequence)
            return True
        queue = self._tenants.get(_tenant(sequence))
        if queue is None or sequence not in queue:
            return False
        queue.remove(sequence)
        if not queue:
            del self._tenants[_tenant(sequence)]
        return True


def _tenant(sequence: Sequence) -> bytes:
    return sequence.request.cache_salt
