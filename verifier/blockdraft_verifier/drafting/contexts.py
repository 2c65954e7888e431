"""What the drafter holds of each sequence, as far as its answers and our requests say."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from blockdraft_verifier.scheduling.sequence import Sequence


@dataclass(slots=True, eq=False)
class Context:
    """One sequence's context at the drafter.

    Attributes:
        context_id: The drafter's name for it; a context built anew gets a new one, so that
            answers about the old one are recognized.
        sequence: The sequence.
        length: Positions the drafter holds once all requests sent so far are done.
        refusals: Refusals since the last proposal.
    """

    context_id: int
    sequence: Sequence
    length: int = 0
    refusals: int = 0


@dataclass(slots=True)
class PendingStep:
    """A request without an answer yet; times in seconds of the verifier's clock.

    Attributes:
        step_id: Its number.
        sent_at: When it was sent.
        deadline: Until when sequences wait for its proposals; None if none do.
        feature_rows: Positions whose features it brings.
        feature_bytes: Size of these.
        late: Whether the deadline passed.
        expected_length: Positions each context holds once it is done.
        draft_length: Tokens asked for, by context.
    """

    step_id: int
    sent_at: float
    deadline: float | None
    feature_rows: int = 0
    feature_bytes: int = 0
    late: bool = False
    expected_length: dict[int, int] = field(default_factory=dict)
    draft_length: dict[int, int] = field(default_factory=dict)


class Contexts:
    """All contexts at the drafter; a sequence without one waits for no proposal."""

    def __init__(self) -> None:
        """Start with none."""
        self._of_sequence: dict[Sequence, Context] = {}
        self._by_id: dict[int, Context] = {}
        self._released: list[int] = []
        self._last_id = 0

    def __iter__(self) -> Iterator[Context]:
        """Iterate over the contexts."""
        return iter(self._of_sequence.values())

    def snapshot(self) -> tuple[Context, ...]:
        """Return the contexts there are now; any thread may ask."""
        return tuple(self._of_sequence.values())

    def __getitem__(self, sequence: Sequence) -> Context:
        """Return the context of a sequence that has one."""
        return self._of_sequence[sequence]

    @property
    def awaiting(self) -> bool:
        """Whether any sequence waits for its proposal."""
        return any(sequence.awaiting_draft for sequence in self._of_sequence)

    def open(self, sequence: Sequence) -> Context:
        """Return a sequence's context, an empty one if it has none."""
        context = self._of_sequence.get(sequence)
        if context is None:
            self._last_id += 1
            context = Context(self._last_id, sequence)
            self._of_sequence[sequence] = context
            self._by_id[context.context_id] = context
        return context

    def find(self, context_id: int) -> Context | None:
        """Return the context of this number unless it was released."""
        return self._by_id.get(context_id)

    def release(self, sequence: Sequence) -> None:
        """Drop a sequence's context; it may be built again from nothing later."""
        context = self._of_sequence.pop(sequence, None)
        if context is not None:
            del self._by_id[context.context_id]
            self._released.append(context.context_id)
        sequence.awaiting_draft = False

    @property
    def any_released(self) -> bool:
        """Whether the drafter is still to be told of a released context."""
        return bool(self._released)

    def take_released(self) -> list[int]:
        """Return the contexts released since last asked: the drafter is to be told once."""
        released, self._released = self._released, []
        return released

    def clear(self) -> None:
        """Forget everything: the drafter has."""
        for sequence in self._of_sequence:
            sequence.awaiting_draft = False
        self._of_sequence.clear()
        self._by_id.clear()
        self._released = []
