"""The arithmetic of the comparison: speeds over the same prompts, and ours over theirs."""

import statistics
from collections.abc import Mapping, Sequence

from blockdraft_bench.common.answers import Answer, speed
from blockdraft_bench.common.statistics import identical_share, quartiles
from blockdraft_bench.peers.answers import Variant
from blockdraft_bench.peers.report import PeerRow, Spread

# The answers of each decoder to the same prompts, in the same order.
Round = Mapping[Variant, Sequence[Answer]]


def compare(rounds: Sequence[Round], *, plain: Variant, drafted: Variant) -> tuple[PeerRow, ...]:
    """Sum up all decoders.

    Args:
        rounds: At least one, with an answer or more.
        plain: Our plain decoding.
        drafted: Our drafted decoding.
    """
    rows = []
    for variant in rounds[0]:
        own = [answer for each in rounds for answer in each[variant]]
        reference = [answer for each in rounds for answer in each[plain]]
        rows.append(
            PeerRow(
                peer=variant.peer,
                variant=variant.name,
                dtype=variant.dtype,
                tokens=sum(len(answer.token_ids) for answer in own),
                tokens_per_second=_spread([speed(each[variant]) for each in rounds]),
                plain_ratio=_spread([_ratio(each, plain, variant) for each in rounds]),
                drafted_ratio=_spread([_ratio(each, drafted, variant) for each in rounds]),
                ttft_seconds=statistics.median(answer.ttft_seconds for answer in own),
                identical_share=identical_share(
                    (one.token_ids, two.token_ids) for one, two in zip(own, reference, strict=True)
                ),
            )
        )
    return tuple(rows)


def _ratio(answers: Round, ours: Variant, theirs: Variant) -> float | None:
    """Return the speed of one decoder over that of another in one round."""
    fast, slow = speed(answers[ours]), speed(answers[theirs])
    return fast / slow if fast is not None and slow is not None else None


def _spread(of_rounds: Sequence[float | None]) -> Spread | None:
    known = [value for value in of_rounds if value is not None]
    edges = quartiles(known)
    return None if edges is None else Spread(statistics.median(known), edges)
