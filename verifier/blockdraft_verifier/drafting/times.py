"""What waiting for the drafter took; the cost model learns from it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """Proposals that nobody waited for any more; times in seconds.

    Attributes:
        proposals: Proposals with tokens among them.
        longest: Most tokens of one of them.
        computed: How long the drafter computed.
        elapsed: From the request until the answer was seen.
    """

    proposals: int
    longest: int
    computed: float
    elapsed: float


@dataclass(slots=True)
class DraftTimes:
    """What waiting for the drafter took, and what came of it.

    Attributes:
        waited: Seconds until the answers were there, or nobody waited any more.
        computed: Seconds the drafter computed what was waited for.
        answers: Answers that came in time.
        proposals: Proposals with tokens among them.
        longest: Most tokens of one of them.
        backlogged: Whether they took in more features than one verification commits, so that they
            took longer than usual.
        missed: Deadlines that passed.
        late: Answers that came after theirs.
    """

    waited: float = 0.0
    computed: float = 0.0
    answers: int = 0
    proposals: int = 0
    longest: int = 0
    backlogged: bool = False
    missed: int = 0
    late: list[LateAnswer] = field(default_factory=list)

    @property
    def transport(self) -> float:
        """Seconds waited beyond the drafter's computation."""
        return max(0.0, self.waited - self.computed)
