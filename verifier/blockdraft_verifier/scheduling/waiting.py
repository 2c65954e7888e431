"""Sequences that wait to run, and which of them is next; pure Python."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from blockdraft_verifier.scheduling.sequence import TokenSequence


class _Lane(NamedTuple):
    begun: deque[TokenSequence]
    tenants: dict[bytes, deque[TokenSequence]]  # in the order of their turns; none is empty


class WaitingSequences:
    """A queue for each tenant, which is told by the cache salt of its requests.

    The next slot goes to the tenant that has the fewest sequences running, and among equals to the
    one whose turn was longest ago. So a tenant that sends many requests waits for its own, and one
    that sends a few waits for at most one of each other tenant. A sequence whose completion has
    begun goes before all: first the preempted ones, then those that another verifier began. All
    this holds of each of two lanes: the background gets a slot only while no other sequence waits.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._lanes = _Lane(deque(), {}), _Lane(deque(), {})
        # Kept apart from them because other threads ask for it.
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return self._count

    def __iter__(self) -> Iterator[TokenSequence]:
        """Yield the normal sequences, then the background."""
        for lane in self._lanes:
            for queue in (lane.begun, *lane.tenants.values()):
                yield from queue

    def add(self, sequence: TokenSequence) -> None:
        """Put a sequence behind others of its tenant, or a replay behind others that had begun."""
        lane = self._lane(sequence)
        if sequence.request.replay:
            lane.begun.append(sequence)
        else:
            lane.tenants.setdefault(_tenant(sequence), deque()).append(sequence)
        self._count += 1

    def put_back(self, sequence: TokenSequence) -> None:
        """Put a sequence that had run before all others of its lane."""
        self._lane(sequence).begun.appendleft(sequence)
        self._count += 1

    def first(self, running: Iterable[TokenSequence]) -> TokenSequence:
        """Return the sequence to run next, beside `running`. At least one must wait."""
        begun, tenants = next(lane for lane in self._lanes if any(lane))
        if begun:
            return begun[0]
        slots = Counter(map(_tenant, running))
        # `min` returns the first of tenants with equally few.
        return tenants[min(tenants, key=lambda tenant: slots[tenant])][0]

    def take(self, sequence: TokenSequence) -> None:
        """Take out the sequence that runs next; its tenant's turn has been."""
        begun, tenants = self._lane(sequence)
        if begun:
            begun.remove(sequence)
        else:
            queue = tenants.pop(_tenant(sequence))
            queue.remove(sequence)
            if queue:
                tenants[_tenant(sequence)] = queue
        self._count -= 1

    def discard(self, sequence: TokenSequence) -> None:
        """Take out a sequence that shall not run, if it waits; no turn changes."""
        begun, tenants = self._lane(sequence)
        queue = begun if sequence in begun else tenants.get(_tenant(sequence), deque())
        if sequence in queue:
            queue.remove(sequence)
            self._count -= 1
            if not queue and queue is not begun:
                del tenants[_tenant(sequence)]

    def _lane(self, sequence: TokenSequence) -> _Lane:
        return self._lanes[sequence.request.background]


def _tenant(sequence: TokenSequence) -> bytes:
    return sequence.request.cache_salt
