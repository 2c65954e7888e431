"""Where answers part from those of plain decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockdraft_bench.common.timed_answers import PLAIN, DecodedSet
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# The margin of the choice that follows these tokens of a request's answer.
Margin = Callable[[GenerationRequest, Sequence[int]], float]


@dataclass(frozen=True, slots=True)
class Divergence:
    """An answer that is not that of plain decoding.

    Attributes:
        sample_id: Id of the sample.
        temperature: Of the target.
        position: Index of the first token that differs, from 0 at the start of the answer.
        logit_margin: Margin of the target's choice there; see `choice_margin`.
    """

    sample_id: str
    temperature: float
    position: int
    logit_margin: float


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the first index at which two answers differ, or None if they do not.

    If one is the beginning of the other, they differ where it ends.
    """
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))


def find_divergences(decoded: DecodedSet, method: str, margin: Margin) -> tuple[Divergence, ...]:
    """Return where the answers of a method differ from those of plain decoding."""
    found = []
    for sample in decoded.samples:
        plain = sample.answers[PLAIN].answer.token_ids
        position = first_difference(plain, sample.answers[method].answer.token_ids)
        if position is not None:
            found.append(
                Divergence(
                    sample.request.request_id,
                    decoded.temperature,
                    position,
                    margin(sample.request, plain[:position]),
                )
            )
    return tuple(found)
