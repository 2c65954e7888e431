"""Slots of states: of running sequences, and of beginnings that other sequences may have, too.

A target whose layers have a state can go on after a known beginning only where a state was saved.
That is done where a page and a chunk of the state end together, before a step of a sequence that
has just come past such a place: in a prompt where its steps end, and in a completion, of which only
the last one stays. The state that was not used for longest gives way.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.scheduling.sequence import TokenSequence


class StateCopy(NamedTuple):
    """A copy of a slot to another, which is made before the next step."""

    source: int
    target: int


class StateSlots:
    """Hands out slots to sequences, and remembers whose states are in those that are saved."""

    def __init__(self, sequences: int, snapshots: int = 0, chunk_tokens: int | None = None) -> None:
        """Own slots for so many running sequences, and behind them for so many beginnings.

        A state changes after every `chunk_tokens`; None stands for a target without states, in
        which a beginning may end anywhere.
        """
        self._chunk_tokens = chunk_tokens
        self._free = list(reversed(range(sequences)))
        self._empty = list(range(sequences, sequences + snapshots))
        # By the name of the last page of a beginning, least recently used first.
        self._saved: OrderedDict[bytes, int] = OrderedDict()
        self._of_completion: dict[int, bytes] = {}  # names, by the slot of the sequence
        self._copies: dict[int, StateCopy] = {}  # by target: an earlier one would be overwritten

    @classmethod
    def of(cls, settings: EngineSettings) -> "StateSlots":
        """Return the slots of an engine."""
        sizes = settings.scheduler.max_sequences, settings.state_snapshots
        return cls(*sizes, settings.state_chunk_tokens)

    def take(self) -> int:
        """Return a slot for a sequence; there must be one."""
        slot = self._free.pop()
        self._of_completion.pop(slot, None)
        return slot

    def release(self, slot: int) -> None:
        """Take back the slot of a sequence. A state that is to be saved out of it still is."""
        self._copies.pop(slot, None)
        self._free.append(slot)

    def has(self, name: bytes) -> bool:
        """Return whether a sequence can go on after the page of this name."""
        return self._chunk_tokens is None or name in self._saved

    def save(self, sequence: TokenSequence, page_size: int) -> None:
        """Save the state of a sequence that has just come past an end of page and chunk.

        Its next step must not have begun.
        """
        if self._chunk_tokens is None:
            return
        stride = math.lcm(page_size, self._chunk_tokens)
        end = sequence.committed // stride * stride
        pages = end // page_size
        # Further on, the state is that of a later chunk.
        is_there = sequence.committed < end + self._chunk_tokens
        if not is_there or not 0 < pages <= len(sequence.page_hashes):
            return
        name, slot = sequence.page_hashes[pages - 1], sequence.state_slot
        if name in self._saved:
            self._saved.move_to_end(name)
            return
        if end > len(sequence.request.prompt):
            before = self._of_completion.pop(slot, b"")
            if before in self._saved:
                self._empty.append(self._saved.pop(before))
            self._of_completion[slot] = name
        if self._empty or self._saved:
            target = self._empty.pop() if self._empty else self._saved.popitem(last=False)[1]
            self._saved[name] = target
            self._copies[target] = StateCopy(slot, target)

    def restore(self, sequence: TokenSequence) -> None:
        """Begin a sequence with the state after the pages that it took over."""
        if self._chunk_tokens is not None and sequence.page_hashes:
            name, slot = sequence.page_hashes[-1], sequence.state_slot
            self._saved.move_to_end(name)
            self._copies[slot] = StateCopy(self._saved[name], slot)

    def take_copies(self) -> tuple[StateCopy, ...]:
        """Return the copies to be made now, in order."""
        copies = tuple(self._copies.values())
        self._copies.clear()
        return copies

    def forget_contents(self) -> None:
        """Forget all saved states."""
        self._empty.extend(self._saved.values())
        self._saved.clear()
        self._copies.clear()
