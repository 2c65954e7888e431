"""Acceptance in a report: greedy acceptance along the block is drawn, by domain."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes

from blockdraft_bench.acceptance.report import AcceptanceReport, markdown
from blockdraft_bench.common.datasets import DOMAINS
from blockdraft_bench.common.figure import LINE_STYLES
from blockdraft_bench.report.section import Panel, Section, coolest

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Shares:
    """How far a drafter's proposals were accepted.

    Attributes:
        draft: The method and the tokens of a whole proposal, in words.
        about: The dataset, or the domain of several.
        temperature: Of the target.
        steps: Verifications.
        per_position: Share of them in which the token at each position was accepted.
    """

    draft: str
    about: str
    temperature: float
    steps: int
    per_position: tuple[float, ...]


def domain_of(dataset: str) -> str:
    """Return what a dataset is about; "other" if it is none of the test sets."""
    return next((name for name, members in DOMAINS.items() if dataset in members), OTHER)


def measured_shares(reports: Iterable[AcceptanceReport]) -> list[Shares]:
    """Return the shares of all datasets in which anything was measured."""
    return [
        Shares(
            f"{report.drafter.method}, {report.draft_length} drafted",
            row.dataset,
            row.temperature,
            row.steps,
            tuple(each.value or 0.0 for each in row.acceptance_per_position),
        )
        for report in reports
        for row in report.results
        if row.steps
    ]


def pool_by_domain(rows: Iterable[Shares]) -> list[Shares]:
    """Pool the verifications of each domain's datasets, by draft, at the lowest temperature."""
    groups: dict[tuple[str, int], list[Shares]] = defaultdict(list)
    order = [*DOMAINS, OTHER]
    for row in coolest(rows):
        groups[row.draft, order.index(domain_of(row.about))].append(row)
    pooled = []
    for (draft, domain), members in sorted(groups.items()):
        steps = sum(row.steps for row in members)
        # A share times the verifications it is of is a count.
        counts = zip(
            *([share * row.steps for share in row.per_position] for row in members), strict=True
        )
        shares = tuple(sum(count) / steps for count in counts)
        pooled.append(Shares(draft, order[domain], members[0].temperature, steps, shares))
    return pooled


def draw_decay(rows: Sequence[Shares], axes: Axes) -> None:
    """Draw a curve for each domain: a style for each method and draft length."""
    order = [*DOMAINS, OTHER]
    drafts = list(dict.fromkeys(row.draft for row in rows))
    for row in rows:
        axes.plot(
            range(1, len(row.per_position) + 1),
            row.per_position,
            LINE_STYLES[drafts.index(row.draft) % len(LINE_STYLES)],
            marker=".",
            color=f"C{order.index(row.about)}",
            label=f"{row.about}, {row.draft}",
        )
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("share of verifications that accept it")
    axes.legend(fontsize="x-small")


def _panel(reports: Sequence[AcceptanceReport]) -> Panel | None:
    pooled = pool_by_domain(measured_shares(reports))
    draw = partial(draw_decay, pooled)
    return Panel("decay", "Acceptance along the block", draw) if pooled else None


def _keys(report: AcceptanceReport) -> Iterable[str]:
    draft = f"{report.drafter.method}, {report.draft_length} drafted"
    return (f"{draft}, {row.dataset}, T = {row.temperature:g}" for row in report.results)


ACCEPTANCE = Section("Acceptance", AcceptanceReport, markdown, _panel, _keys)
