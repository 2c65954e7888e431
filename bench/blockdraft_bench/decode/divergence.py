"""Where answers part from those of plain decoding."""

from collections.abc import Callable, Sequence

from blockdraft_bench.common.answers import PLAIN, first_difference
from blockdraft_bench.decode.report import Divergence
from blockdraft_bench.decode.samples import DecodedSet
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# The margin of the choice that follows these tokens of a request's answer.
Margin = Callable[[GenerationRequest, Sequence[int]], float]


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
                    position,
                    margin(sample.request, plain[:position]),
                    decoded.temperature,
                )
            )
    return tuple(found)
