"""Acceptance on paper: what the JSON report holds, and the page of it."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import INTERVALS_NOTE, Cell, number, page, share, table
from blockdraft_bench.common.provenance import Drafter, Report
from blockdraft_bench.common.statistics import Estimate


@dataclass(frozen=True, slots=True)
class DatasetAcceptance:
    """What the drafter gains on one dataset at one temperature.

    Attributes:
        samples: Answers.
        verifications: All verifications, those that do not measure the drafter included.
        steps: Verifications that do.
        acceptance_length: τ.
        acceptance_per_position: Acceptance at each position.
        conditional_acceptance_per_position: The same given that all before were accepted.
        acceptance_decay: Conditional acceptance at each position but the first over that before.
        identical_share: Share of answers whose tokens are those of plain decoding.
        reach_counts: For each answer, verifications that accepted at least 0, 1, ... K tokens;
            none in results of earlier versions.
    """

    dataset: str
    temperature: float
    samples: int
    tokens: int
    verifications: int
    steps: int
    acceptance_length: Estimate
    acceptance_per_position: tuple[Estimate, ...]
    conditional_acceptance_per_position: tuple[Estimate, ...]
    acceptance_decay: tuple[Estimate, ...]
    identical_share: float
    reach_counts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport(Report):
    """The whole report.

    Attributes:
        draft_length: Tokens of a whole proposal.
        results: One for each dataset and temperature.
        dtype: Of weights, cache and contexts; empty in results of earlier versions.
        top_p: Probability mass kept where the temperature is above 0; earlier versions kept all.
    """

    # The first reports did not say what they are.
    benchmark: Literal["acceptance"] = "acceptance"
    drafter: Drafter
    block_size: int
    draft_length: int
    max_tokens: int
    max_prompt_tokens: int
    seed: int
    results: tuple[DatasetAcceptance, ...]
    dtype: str = ""
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Check that every result has a number for each position.

        Raises:
            ValueError: If one has not.
        """
        for row in self.results:
            if len(row.acceptance_per_position) != self.draft_length:
                raise ValueError(f"{row.dataset} has not {self.draft_length} positions")


def markdown(report: AcceptanceReport) -> str:
    """Return the page."""
    nucleus = "" if report.top_p == 1.0 else f", top-p {report.top_p:g}"
    caption = (
        f"Target {report.target}, {report.dtype or 'dtype unknown'}, {report.drafter}, "
        f"blocks of {report.block_size}, {report.draft_length} tokens drafted{nucleus}; "
        f"answers of at most {report.max_tokens} tokens; {report.made_on}. {INTERVALS_NOTE}"
    )
    headings = ["Dataset", "T", "Answers", "Verifications", "τ"]
    rows: list[list[Cell]] = [
        [
            row.dataset,
            f"{row.temperature:g}",
            row.samples,
            row.steps,
            row.acceptance_length,
            " ".join(number(position.value) for position in row.acceptance_per_position),
            share(row.identical_share),
        ]
        for row in report.results
    ]
    return page(
        caption,
        table([*headings, "Accepted at position 1, 2, …", "Identical to plain"], rows),
    )
