"""Numbers other people published for block-diffusion drafting on TPU, to hold ours against.

They are of other targets on other hardware with other drafters: a scale, not a baseline. Their τ
counts the first token, which follows the prompt without a verification, as a step of 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_bench.common.markdown import number, page, table
from blockdraft_bench.decode.report import MethodSpeed


@dataclass(frozen=True, slots=True)
class PublishedSpeed:
    """What DFlash gained on one dataset.

    Attributes:
        dataset: Name of the dataset.
        acceptance_length: τ.
        speedup: Over plain decoding.
        plain_tpot_ms: Time per token of plain decoding, in milliseconds.
        tpot_ms: Time per token with drafts, in milliseconds.
    """

    dataset: str
    acceptance_length: float
    speedup: float
    plain_tpot_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class PublishedMethod:
    """The mean speed-up of one draft method.

    Attributes:
        method: Name of the method.
        draft_length: Drafted tokens.
        speedup: Over plain decoding.
    """

    method: str
    draft_length: int
    speedup: float


@dataclass(frozen=True, slots=True)
class PublishedKFlat:
    """How much longer verifying 128 tokens took than verifying 16, from the least to the most."""

    device: str
    ratio: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Published:
    """All of them, with where they were measured and where they were found."""

    speed_setting: str = "Qwen3-4B, DFlash, blocks of 16, greedy, one sequence, TPU v5p-8"
    speed_source: str = "README of aaronzhfeng/tpu-spec-decode, standalone benchmark"
    tpu_v5p_speeds: tuple[PublishedSpeed, ...] = (
        PublishedSpeed("math500", 8.80, 5.72, 8.02, 1.40),
        PublishedSpeed("aime24", 6.48, 3.98, 7.69, 1.93),
        PublishedSpeed("aime25", 6.14, 3.35, 6.85, 2.05),
        PublishedSpeed("gsm8k", 5.40, 3.17, 7.32, 2.31),
        PublishedSpeed("humaneval", 5.76, 3.53, 7.70, 2.18),
        PublishedSpeed("mbpp", 6.16, 2.77, 7.31, 2.64),
        PublishedSpeed("mt-bench", 3.87, 2.36, 7.20, 3.05),
        PublishedSpeed("alpaca", 2.86, 1.65, 6.72, 4.08),
        PublishedSpeed("swe-bench", 3.35, 1.60, 6.85, 4.27),
    )
    tpu_v5p_mean: PublishedSpeed = PublishedSpeed("mean", 5.42, 3.13, 7.30, 2.66)
    methods_setting: str = "Llama-3.1-8B in vLLM, TPU v5p"
    methods_source: str = (
        "Google and UCSD, 2026-05, as summarized by others; no table by dataset was found"
    )
    tpu_v5p_methods: tuple[PublishedMethod, ...] = (
        PublishedMethod("dflash", 10, 2.29),
        PublishedMethod("eagle3", 2, 1.30),
    )
    kflat_tokens: tuple[int, int] = (16, 128)
    kflat_source: str = "aaronzhfeng/tpu-spec-decode"
    kflat: tuple[PublishedKFlat, ...] = (
        PublishedKFlat("TPU v5p", (1.00, 1.00)),
        PublishedKFlat("H100", (1.00, 1.01)),
        PublishedKFlat("RTX 2000 Ada", (1.24, 1.24)),
    )


PUBLISHED = Published()
SPEED_MARK = "Qwen3-4B on TPU v5p"


def published_tables(ours: Sequence[MethodSpeed]) -> str:
    """Return them in Markdown, with our greedy results of the same datasets beside them."""
    methods = list(dict.fromkeys(row.method for row in ours))
    found = {(row.dataset, row.method): row for row in ours}
    headings = ["Dataset", "τ", "Speed-up", "Per token, ms"]
    for method in methods:
        headings += [f"our τ, {method}", f"our speed-up, {method}"]
    lines = []
    for speed in (*PUBLISHED.tpu_v5p_speeds, PUBLISHED.tpu_v5p_mean):
        cells = [speed.dataset, number(speed.acceptance_length), number(speed.speedup, unit="x")]
        cells.append(f"{speed.plain_tpot_ms:.2f} → {speed.tpot_ms:.2f}")
        for method in methods:
            row = found.get((speed.dataset, method))
            length, speedup = (row.acceptance_length, row.speedup) if row else (None, None)
            cells += [number(length), number(speedup, unit="x")]
        lines.append(cells)
    low, high = PUBLISHED.kflat_tokens
    return page(
        f"{PUBLISHED.speed_setting}. Source: {PUBLISHED.speed_source}.",
        table(headings, lines),
        f"{PUBLISHED.methods_setting}. Source: {PUBLISHED.methods_source}.",
        table(
            ["Method", "Drafted", "Mean speed-up"],
            (
                [m.method, m.draft_length, number(m.speedup, unit="x")]
                for m in PUBLISHED.tpu_v5p_methods
            ),
        ),
        f"Verifying {high} tokens over verifying {low}. Source: {PUBLISHED.kflat_source}.",
        table(
            ["Device", "Ratio"],
            ([k.device, "–".join(map(number, dict.fromkeys(k.ratio)))] for k in PUBLISHED.kflat),
        ),
    )
