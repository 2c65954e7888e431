"""One decoded completion, and how completions to the same prompts compare: tokens and speed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blockdraft_bench.statistics import Estimate, bootstrap, identical_share

# Ways to decode: without drafts, and with them.
PLAIN, DRAFTED = "plain", "drafted"


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """The record of one completion; only our own have verifications and drafts."""

    token_ids: tuple[int, ...]
    decode_seconds: float = 0.0  # from the first token to the last
    # How many tokens came first, at once: 1, or more if a program drafts before it has read the
    # prompt.
    first_tokens: int = 1
    verifications: int = 0  # the first token follows from the prompt without one
    # How often each position of a draft was filled, and how often its token was accepted.
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()

    @property
    def timed_tokens(self) -> int:
        """Tokens that came in `decode_seconds`."""
        return len(self.token_ids) - self.first_tokens


def divergences(
    completions: Sequence[CompletionRecord], baseline: Sequence[CompletionRecord]
) -> Iterator[tuple[int, int]]:
    """Yield the index of each pair of completions that differ, and the first differing position.

    If one completion is the beginning of the other, they differ where it ends.
    """
    for index, (completion, reference) in enumerate(zip(completions, baseline, strict=True)):
        if completion.token_ids != reference.token_ids:
            pairs = enumerate(zip(completion.token_ids, reference.token_ids, strict=False))
            shorter = min(len(completion.token_ids), len(reference.token_ids))
            yield index, next((place for place, (a, b) in pairs if a != b), shorter)


def identical_completions(
    completions: Sequence[CompletionRecord], baseline: Sequence[CompletionRecord]
) -> float:
    """Return the share of completions to the same prompts with the same tokens."""
    return identical_share(
        (completion.token_ids, reference.token_ids)
        for completion, reference in zip(completions, baseline, strict=True)
    )


def speed(completions: Sequence[CompletionRecord]) -> float | None:
    """Return tokens after the first over the time after the first; None if there are none."""
    seconds = sum(completion.decode_seconds for completion in completions)
    return sum(completion.timed_tokens for completion in completions) / seconds if seconds else None


def speed_ratio(
    completions: Sequence[CompletionRecord], baseline: Sequence[CompletionRecord], seed: int
) -> Estimate:
    """Return the speed of completions over that of the baseline's to the same prompts.

    Its interval draws prompts, each with both completions.
    """
    return bootstrap([_both(completions, baseline)], seed)


def mean_speed_ratio(
    pairs: Iterable[tuple[Sequence[CompletionRecord], Sequence[CompletionRecord]]], seed: int
) -> Estimate:
    """Return the geometric mean over datasets of `speed_ratio`, each counting the same."""
    columns = [_both(completions, baseline) for completions, baseline in pairs]
    return bootstrap(columns, seed, lambda ratios: np.exp(np.log(ratios).mean(0)))


def _both(
    completions: Sequence[CompletionRecord], baseline: Sequence[CompletionRecord]
) -> Float[np.ndarray, "completions 4"]:
    """Return tokens and seconds of both completions to each prompt."""
    return np.array(
        [
            (
                completion.timed_tokens,
                completion.decode_seconds,
                reference.timed_tokens,
                reference.decode_seconds,
            )
            for completion, reference in zip(completions, baseline, strict=True)
        ],
        np.float64,
    )
