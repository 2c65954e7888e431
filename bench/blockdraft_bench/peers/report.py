"""Peers on paper: what the JSON report holds, and the page of it."""

from dataclasses import dataclass
from typing import Any, Literal

from blockdraft_bench.common.markdown import INTERVALS_NOTE, Cell, number, page, share, table
from blockdraft_bench.common.provenance import Drafter, Report, Target
from blockdraft_bench.common.statistics import Estimate

LLAMA_CPP_NOTE = (
    "llama.cpp computes with the quantized weights of the file, the others with the same weights "
    "dequantized: it reads fewer bytes a token and rounds differently."
)


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """Where an answer first differs from that of our plain decoding: at the token of an index."""

    dataset: str
    sample: str
    token: int


@dataclass(frozen=True, slots=True)
class PeerRow:
    """How one decoder compares.

    Attributes:
        variant: How it decodes.
        dtype: Of its weights.
        samples: Answers.
        tokens_per_second: Tokens after the first, over the time after the first; None if no
            answer has more than one.
        ttft_seconds: Time to the first token, median.
        ratio_to_plain: Its speed over that of our plain decoding.
        ratio_to_drafted: Its speed over that of our drafted decoding.
        identical_share: Share of answers whose tokens are those of our plain decoding.
        first_divergences: Where the rest first differ.
    """

    peer: str
    variant: str
    dtype: str
    samples: int
    tokens: int
    tokens_per_second: float | None
    ttft_seconds: float
    ratio_to_plain: Estimate
    ratio_to_drafted: Estimate
    identical_share: float
    first_divergences: tuple[FirstDivergence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReport(Report):
    """The whole report.

    Attributes:
        drafter: What drafts for our drafted decoding.
        draft_policy: Of our engine.
        assistant: The smaller model of assisted generation; None if there was none.
        threads: Of the peers.
        results: One for each decoder.
        skipped: Why each of the other peers did not take part.
    """

    benchmark: Literal["peers"] = "peers"
    drafter: Drafter
    block_size: int
    draft_policy: str
    assistant: Target | None
    max_tokens: int
    max_prompt_tokens: int
    threads: int
    seed: int
    peer_versions: dict[str, str | None]
    results: tuple[PeerRow, ...]
    skipped: dict[str, str]

    @staticmethod
    def upgraded(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON of an earlier version, where the skipped stood among the results."""
        if "skipped" in fields:
            return fields
        rows = fields.get("results") or []
        skipped = {row["peer"]: row["skipped"] for row in rows if "skipped" in row}
        measured = [row for row in rows if "skipped" not in row]
        return {**fields, "results": measured, "skipped": skipped}


def markdown(report: PeersReport) -> str:
    """Return the page."""
    caption = (
        f"Target {report.target}, {report.drafter}, blocks of {report.block_size}; greedy, answers "
        f"of at most {report.max_tokens} tokens, one at a time; {report.threads} threads; "
        f"{report.made_on}. {INTERVALS_NOTE}"
    )
    headings = ["Decoder", "Weights", "Answers", "Tokens/s", "Over our plain", "Over our drafted"]
    rows: list[list[Cell]] = [
        [
            f"{row.peer} {row.variant}",
            row.dtype,
            row.samples,
            number(row.tokens_per_second, 1),
            number(row.ratio_to_plain, unit="x"),
            number(row.ratio_to_drafted, unit="x"),
            number(row.ttft_seconds, 0, " ms", factor=1e3),
            share(row.identical_share),
        ]
        for row in report.results
    ]
    return page(
        caption,
        table([*headings, "First token", "Identical to our plain"], rows),
        LLAMA_CPP_NOTE if any(row.peer == "llama.cpp" for row in report.results) else "",
        *(f"{peer}: {reason}." for peer, reason in report.skipped.items()),
    )
