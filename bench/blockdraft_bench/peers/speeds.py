"""The arithmetic of the comparison: speeds over the same prompts, and their ratios to ours."""

import statistics
from collections.abc import Mapping, Sequence

from blockdraft_bench.common.answers import Answer, divergences, speed, speed_ratio
from blockdraft_bench.peers.answers import Variant
from blockdraft_bench.peers.report import FirstDivergence, PeerRow


def compare(
    answers: Mapping[Variant, Sequence[Answer]],
    names: Sequence[tuple[str, str]],
    *,
    plain: Variant,
    drafted: Variant,
    seed: int,
) -> tuple[PeerRow, ...]:
    """Sum up all decoders.

    Args:
        answers: The answers of each to the same prompts, at least one, in the same order.
        names: Dataset and sample of each prompt.
        plain: Our plain decoding.
        drafted: Our drafted decoding.
        seed: Of the bootstrap.
    """
    reference = answers[plain]
    rows = []
    for variant, own in answers.items():
        diverged = tuple(
            FirstDivergence(*names[index], place) for index, place in divergences(own, reference)
        )
        rows.append(
            PeerRow(
                peer=variant.peer,
                variant=variant.name,
                dtype=variant.dtype,
                samples=len(own),
                tokens=sum(len(answer.token_ids) for answer in own),
                tokens_per_second=speed(own),
                ttft_seconds=statistics.median(answer.ttft_seconds for answer in own),
                ratio_to_plain=speed_ratio(own, reference, seed),
                ratio_to_drafted=speed_ratio(own, answers[drafted], seed),
                identical_share=1 - len(diverged) / len(own),
                first_divergences=diverged,
            )
        )
    return tuple(rows)
