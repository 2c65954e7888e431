"""Numbers other people published for block-diffusion drafting on TPU, to hold ours against.

They are of other targets on other hardware with other drafters: a scale, not a baseline. Their τ
counts the first token, which follows the prompt without a verification, as a step of 1.
"""

from dataclasses import dataclass


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


SPEED_SETTING = "Qwen3-4B, DFlash, blocks of 16, greedy, one sequence, TPU v5p-8"
SPEED_MARK = "Qwen3-4B on TPU v5p"
SPEED_SOURCE = "README of aaronzhfeng/tpu-spec-decode, standalone benchmark"
TPU_V5P_SPEEDS = (
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
TPU_V5P_MEAN = PublishedSpeed("mean", 5.42, 3.13, 7.30, 2.66)


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


METHODS_SETTING = "Llama-3.1-8B in vLLM, TPU v5p"
METHODS_SOURCE = "Google and UCSD, 2026-05, as summarized by others; no table by dataset was found"
TPU_V5P_METHODS = (PublishedMethod("dflash", 10, 2.29), PublishedMethod("eagle3", 2, 1.30))


@dataclass(frozen=True, slots=True)
class PublishedKFlat:
    """How much longer verifying 128 tokens took than verifying 16, from the least to the most."""

    device: str
    ratio: tuple[float, float]


KFLAT_TOKENS = (16, 128)
KFLAT_SOURCE = "aaronzhfeng/tpu-spec-decode"
KFLAT = (
    PublishedKFlat("TPU v5p", (1.00, 1.00)),
    PublishedKFlat("H100", (1.00, 1.01)),
    PublishedKFlat("RTX 2000 Ada", (1.24, 1.24)),
)
