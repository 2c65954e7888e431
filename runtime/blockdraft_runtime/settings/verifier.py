"""Settings of the verifier process."""

from dataclasses import dataclass, field
from typing import Literal

from blockdraft_runtime.settings.slice import SliceSettings

DraftPolicy = Literal["adaptive", "fixed"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits of a step and of a sequence.

    Attributes:
        max_sequences: Most sequences decoded at once.
        max_step_tokens: Most tokens in one forward pass.
        max_context_tokens: Most tokens of one sequence, prompt and output together.
        max_waiting: Most sequences waiting to be admitted.
    """

    max_sequences: int = 16
    max_step_tokens: int = 128
    max_context_tokens: int = 2048
    max_waiting: int = 256

    def __post_init__(self) -> None:
        """Check the ranges."""
        if min(self.max_sequences, self.max_step_tokens, self.max_context_tokens) < 1:
            raise ValueError(f"limits must be positive: {self}")
        if self.max_step_tokens < self.max_sequences:
            raise ValueError("max_step_tokens must allow one token per sequence")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine loop runs.

    Attributes:
        scheduler: Limits of a step and of a sequence.
        page_size: Tokens per page of the KV cache.
        num_pages: Pages of the KV cache.
        dtype: Element type of weights and cache; "auto" is bfloat16 on TPU, float32 elsewhere.
        weights: "float" keeps the target's weights in `dtype`, "int8" rounds the matrices of its
            layers to a byte each.
        draft_policy: "adaptive" drafts as far as the measured costs say it pays, zero included;
            "fixed" always drafts as far as allowed.
        draft_groups: 1 verifies all sequences together; 2 verifies one half while the drafter
            drafts for the other, which pays when it has a device of its own.
        draft_timeout_seconds: How long to wait for a proposal before the drafter counts as lost.
    """

    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    page_size: int = 16
    num_pages: int = 384
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    weights: Literal["float", "int8"] = "float"
    draft_policy: DraftPolicy = "adaptive"
    draft_groups: int = 1
    draft_timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.page_size < 1 or self.num_pages < 1:
            raise ValueError(f"page_size and num_pages must be positive: {self}")
        if self.draft_groups not in (1, 2):
            raise ValueError(f"draft_groups must be 1 or 2, got {self.draft_groups}")
        if self.draft_timeout_seconds <= 0:
            raise ValueError("draft_timeout_seconds must be positive")


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """What the verifier process serves.

    Attributes:
        target: Target model: an embedded name, a directory, a GGUF file or a hub id.
        drafter_address: gRPC address of the drafter, None to decode plainly.
        drafter_wait_seconds: How long start-up waits for the drafter before serving without it.
        engine: The engine loop's configuration.
        slice: Which process of a slice of several hosts this is; None for a single process.
    """

    target: str = "smollm2-135m"
    drafter_address: str | None = "unix:/tmp/blockdraft-drafter.sock"
    drafter_wait_seconds: float = 120.0
    engine: EngineSettings = field(default_factory=EngineSettings)
    slice: SliceSettings | None = None
