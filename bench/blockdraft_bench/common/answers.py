"""One decoded answer: its tokens, and what each verification on the way accepted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        token_ids: Its tokens; the first follows from the prompt without a verification.
        steps: Tokens drafted and tokens accepted of each verification, in order.
        stopped: Whether it ended in a stop token rather than at the limit.
    """

    token_ids: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    stopped: bool

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Answer":
        """Return the answer that `to_fields` wrote.

        Raises:
            ValueError: If it did not; a KeyError or TypeError says the same.
        """
        steps = tuple((drafted, accepted) for drafted, accepted in fields["steps"])
        return cls(tuple(fields["token_ids"]), steps, fields["stopped"])

    def to_fields(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"token_ids": self.token_ids, "steps": self.steps, "stopped": self.stopped}

    def full_steps(self, draft_length: int) -> tuple[int, ...]:
        """Return the accepted tokens of each verification that measures the drafter.

        Those are the verifications of a whole proposal that did not reach a stop token. Left out
        are proposals cut short because the answer may not get longer, and the verification that
        gained a stop token: what comes after it is no part of the answer, so how much of that
        proposal was right is not known. It is left out however the stop token came about,
        drafted or chosen by the target, or else missing it would count and hitting it would not.

        Args:
            draft_length: Tokens of a whole proposal.
        """
        steps = self.steps[:-1] if self.stopped else self.steps
        return tuple(accepted for drafted, accepted in steps if drafted == draft_length)
