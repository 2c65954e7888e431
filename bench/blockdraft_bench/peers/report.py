"""Peers on paper: what the JSON report holds, and the page of it."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import Cell, number, page, share, table
from blockdraft_bench.common.provenance import Drafter, Report


@dataclass(frozen=True, slots=True)
class Spread:
    """A number that every round measured: the median, and the first and the third quartile."""

    median: float
    quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True)
class PeerRow:
    """How one decoder compares; no speed and no ratio if no answer of a round has two tokens.

    Attributes:
        variant: How it decodes.
        dtype: Of its weights.
        tokens: Tokens of all answers of all rounds.
        tokens_per_second: Tokens after the first, over the time after the first.
        plain_ratio: Speed of our plain decoding over its own.
        drafted_ratio: Speed of our drafted decoding over its own.
        ttft_seconds: Time to the first token, median of all answers.
        identical_share: Share of answers whose tokens are those of our plain decoding.
    """

    peer: str
    variant: str
    dtype: str
    tokens: int
    tokens_per_second: Spread | None
    plain_ratio: Spread | None
    drafted_ratio: Spread | None
    ttft_seconds: float
    identical_share: float

    def __str__(self) -> str:
        """Return what to call it."""
        return f"{self.peer} {self.variant} ({self.dtype})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReport(Report):
    """The whole report.

    Attributes:
        drafter: What drafts for our drafted decoding, beside lookup.
        draft_policy: Of our engine.
        prompts: How many prompts every decoder answers in each round.
        threads: Of every program.
        peer_versions: Of the other programs.
        results: One for each decoder.
    """

    benchmark: Literal["peers"] = "peers"
    drafter: Drafter
    block_size: int
    draft_policy: str
    prompts: int
    rounds: int
    max_tokens: int
    max_prompt_tokens: int
    threads: int
    seed: int
    peer_versions: dict[str, str]
    results: tuple[PeerRow, ...]


def markdown(report: PeersReport) -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {version}" for name, version in report.peer_versions.items())
    caption = (
        f"Target {report.target}; {report.drafter}, blocks of {report.block_size}, beside lookup; "
        f"{versions}. {report.prompts} prompts, greedy, answers of at most {report.max_tokens} "
        f"tokens, one at a time; {report.threads} threads; {report.made_on}. Medians of "
        f"{report.rounds} rounds, quartiles in parentheses."
    )
    headings = ["Decoder", "Weights", "Tokens/s", "Our plain over it", "Our drafted over it"]
    rows: list[list[Cell]] = [
        [
            f"{row.peer} {row.variant}",
            row.dtype,
            _cell(row.tokens_per_second, 1),
            _cell(row.plain_ratio, unit="x"),
            _cell(row.drafted_ratio, unit="x"),
            number(row.ttft_seconds, 0, " ms", factor=1e3),
            share(row.identical_share),
        ]
        for row in report.results
    ]
    return page(caption, table([*headings, "First token", "Identical to our plain"], rows))


def _cell(spread: Spread | None, digits: int = 2, unit: str = "") -> str:
    if spread is None:
        return number(None)
    low, high = (number(edge, digits) for edge in spread.quartiles)
    return f"{number(spread.median, digits, unit)} ({low} to {high})"
