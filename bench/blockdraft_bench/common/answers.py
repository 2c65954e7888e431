"""One decoded answer: its tokens, what each verification on the way accepted, how long it took."""

from collections.abc import Sequence
from dataclasses import dataclass

# Among draft methods, decoding without drafts.
PLAIN = "plain"


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


@dataclass(frozen=True, slots=True)
class DecodedAnswer:
    """One answer, decoded alone.

    Attributes:
        answer: Its tokens and verifications.
        ttft_seconds: From the request to the first token.
        decode_seconds: From the first token to the last.
    """

    answer: Answer
    ttft_seconds: float
    decode_seconds: float

    @property
    def decoded_tokens(self) -> int:
        """Tokens that came in `decode_seconds`: all but the first."""
        return len(self.answer.token_ids) - 1

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None if there is no other."""
        return self.decode_seconds / self.decoded_tokens if self.decoded_tokens else None


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the first index at which two answers differ, or None if they do not.

    If one is the beginning of the other, they differ where it ends.
    """
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))
