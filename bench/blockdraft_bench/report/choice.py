"""What a report's panels show of all rows: greedy decoding, domains, the simplest curves."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from blockdraft_bench.common.datasets import DOMAINS
from blockdraft_bench.report.results import AcceptanceRow, DecodeRow, KFlatRow

OTHER = "other"
PLAIN = "plain"
Tempered = TypeVar("Tempered", AcceptanceRow, DecodeRow)


@dataclass(frozen=True, slots=True)
class DomainDecay:
    """Acceptance along the block, over all datasets of a domain.

    Attributes:
        domain: "math", "code", "chat" or "other".
        method: Draft method.
        draft_length: Tokens of a whole proposal.
        steps: Verifications.
        per_position: Share of them in which the token at each position was accepted.
    """

    domain: str
    method: str
    draft_length: int
    steps: int
    per_position: tuple[float, ...]


def domain_of(dataset: str) -> str:
    """Return what a dataset is about; "other" if it is none of the test sets."""
    return next((name for name, members in DOMAINS.items() if dataset in members), OTHER)


def coolest(rows: Sequence[Tempered]) -> list[Tempered]:
    """Return the rows at the lowest temperature: greedy decoding, if that was measured."""
    lowest = min((row.temperature for row in rows), default=0.0)
    return [row for row in rows if row.temperature == lowest]


def decay_by_domain(rows: Sequence[AcceptanceRow]) -> list[DomainDecay]:
    """Pool the verifications of each domain's datasets, by method and draft length.

    Rows in which nothing was measured take no part.
    """
    groups: dict[tuple[str, str, int], list[AcceptanceRow]] = defaultdict(list)
    for row in rows:
        if row.steps:
            groups[domain_of(row.dataset), row.method, row.draft_length].append(row)
    order = [*DOMAINS, OTHER]
    pooled = []
    for (domain, method, length), members in groups.items():
        steps = sum(row.steps for row in members)
        # A share times the verifications it is of is a count.
        shares = tuple(
            sum((row.acceptance_per_position[place] or 0.0) * row.steps for row in members) / steps
            for place in range(length)
        )
        pooled.append(DomainDecay(domain, method, length, steps, shares))
    return sorted(pooled, key=lambda d: (d.method, d.draft_length, order.index(d.domain)))


def simplest_curves(rows: Sequence[KFlatRow]) -> list[list[KFlatRow]]:
    """Return one curve for each device and model: fewest sequences, then shortest context."""
    curves: dict[tuple[str, str, bool, int, int], list[KFlatRow]] = defaultdict(list)
    for row in rows:
        curves[row.curve].append(row)
    chosen: dict[tuple[str, str, bool], list[KFlatRow]] = {}
    for curve in sorted(curves, key=lambda c: (c[3], c[4])):
        chosen.setdefault(curve[:3], sorted(curves[curve], key=lambda row: row.tokens))
    return list(chosen.values())
