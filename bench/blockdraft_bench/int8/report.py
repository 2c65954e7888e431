"""The error of int8 weights on paper: what the JSON report holds, and the page of it."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_bench.common.markdown import Cell, page, share, table
from blockdraft_bench.common.provenance import Report
from blockdraft_bench.int8.logit_error import LogitError


@dataclass(frozen=True, slots=True)
class DatasetError:
    """The error over the answers to one dataset, or to all.

    Attributes:
        dataset: Its name, or "all".
        positions: Tokens of these answers.
        relative_rms_error: Root mean square of the logits' error over that of the logits.
        max_error: Largest absolute error of a logit.
        same_choice_share: Share of positions at which greedy decoding chooses the same token.
        mean_kl_nats: Divergence of the distribution with int8 weights, mean over positions.
    """

    dataset: str
    answers: int
    positions: int
    relative_rms_error: float
    max_error: float
    same_choice_share: float
    mean_kl_nats: float

    @classmethod
    def of(cls, dataset: str, error: LogitError) -> "DatasetError":
        """Return what is reported of the error over the answers to a dataset."""
        return cls(
            dataset,
            error.answers,
            error.positions,
            error.relative_rms,
            error.max_error,
            error.same_choice_share,
            error.mean_kl_nats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Report(Report):
    """The whole report.

    Attributes:
        dtype: Of the weights that are not int8.
        int8_weight_bytes: Of all weights when the layers' matrices are int8.
        overall: Over all datasets, every position counting alike.
    """

    benchmark: Literal["int8"] = "int8"
    dtype: str
    max_tokens: int
    max_prompt_tokens: int
    seed: int
    float_weight_bytes: int
    int8_weight_bytes: int
    overall: DatasetError
    results: tuple[DatasetError, ...]


def markdown(report: Int8Report) -> str:
    """Return the page."""
    before, after = report.float_weight_bytes, report.int8_weight_bytes
    caption = (
        f"Int8 weights against {report.dtype} ones over the target's own greedy answers. Target "
        f"{report.target}, answers of at most {report.max_tokens} tokens; {report.made_on}. "
        f"Weights: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after."
    )
    headings = ["Dataset", "Answers", "Positions", "Relative RMS error", "Largest error"]
    rows: list[list[Cell]] = [
        [
            row.dataset,
            row.answers,
            row.positions,
            f"{row.relative_rms_error:.2%}",
            row.max_error,
            share(row.same_choice_share),
            f"{row.mean_kl_nats:.2g}",
        ]
        for row in (*report.results, report.overall)
    ]
    return page(caption, table([*headings, "Same choice", "Mean KL, nats"], rows))
