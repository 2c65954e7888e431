"""Which slot of the context buffer belongs to which sequence, and how long each context is.

Pure host bookkeeping, without jax, so that it can be tested exhaustively. Slots are shared by all
streams of the process; the table of sequences belongs to one stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass


class SlotPool:
    """Hands out the slots of the context buffer, each to one owner at a time.

    Not thread-safe: every caller runs on the event loop.

    Attributes:
        size: Number of slots.
        generation: Rises whenever the buffer's contents were lost; a context is only good in
            the generation in which it was begun.
    """

    def __init__(self, size: int) -> None:
        """Make `size` free slots.

        Raises:
            ValueError: If `size` is less than 1.
        """
        if size < 1:
            raise ValueError(f"a slot pool needs at least 1 slot, got {size}")
        self.size = size
        self.generation = 0
        # A stack whose top is the lowest slot: small batches stay in the same few slots.
        self._free = list(reversed(range(size)))
        self._used: set[int] = set()

    @property
    def free(self) -> int:
        """Number of slots nobody owns."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Number of slots that have an owner."""
        return len(self._used)

    def acquire(self) -> int | None:
        """Return a slot that nobody owns, now the caller's, or None when there is none."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._used.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Take back a slot.

        Raises:
            ValueError: If nobody owns it.
        """
        if slot not in self._used:
            raise ValueError(f"slot {slot} is not in use")
        self._used.remove(slot)
        self._free.append(slot)

    def invalidate(self) -> None:
        """Declare the contents of all slots lost; owners keep their slots until they release."""
        self.generation += 1


@dataclass(slots=True)
class Context:
    """One sequence's context.

    Attributes:
        slot: Its row of the context buffer.
        length: Committed positions in it.
        request_id: The request it belongs to, for logs; empty if that was not said.
    """

    slot: int
    length: int = 0
    request_id: str = ""


class ContextTable:
    """The contexts of one stream, by sequence id; takes slots from a shared pool."""

    def __init__(self, pool: SlotPool) -> None:
        """Start with no context."""
        self._pool = pool
        self._contexts: dict[int, Context] = {}
        self._generation = pool.generation

    def __len__(self) -> int:
        """Return the number of contexts."""
        return len(self._contexts)

    def length(self, sequence_id: int) -> int:
        """Return the committed positions of a sequence, 0 when it is unknown."""
        context = self._contexts.get(sequence_id)
        return 0 if context is None else context.length

    def lengths(self) -> dict[int, int]:
        """Return the committed positions of every known sequence."""
        return {sequence_id: context.length for sequence_id, context in self._contexts.items()}

    def __iter__(self) -> Iterator[tuple[int, Context]]:
        """Iterate over the sequences and their contexts."""
        return iter(self._contexts.items())

    def open(self, sequence_id: int, request_id: str = "") -> Context | None:
        """Return a sequence's context, begun if need be, or None when no slot is free."""
        context = self._contexts.get(sequence_id)
        if context is None:
            slot = self._pool.acquire()
            if slot is None:
                return None
            context = self._contexts[sequence_id] = Context(slot, 0, request_id)
        return context

    def release(self, sequence_id: int) -> None:
        """Drop a sequence's context; an unknown sequence has none to drop."""
        context = self._contexts.pop(sequence_id, None)
        if context is not None:
            self._pool.release(context.slot)

    def clear(self) -> None:
        """Drop every context."""
        for sequence_id in list(self._contexts):
            self.release(sequence_id)

    def drop_lost(self) -> int:
        """Drop every context if the buffer's contents were lost meanwhile; return how many."""
        if self._generation == self._pool.generation:
            return 0
        lost = len(self._contexts)
        self.clear()
        self._generation = self._pool.generation
        return lost
