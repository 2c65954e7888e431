"""The settings of `blockdraft compile`, and the errors that say what is wrong with them."""

from dataclasses import dataclass
from typing import Literal

from blockdraft_runtime.configuration.definition import check, group, required, setting
from blockdraft_runtime.settings.verifier import EngineSettings


class AotError(ValueError):
    """The command line, or what it names, is wrong."""


class DoesNotFitError(AotError):
    """The chips' memory is too small."""


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits of the service, as its processes take them."""

    max_sequences: int = setting(16, "maximum sequences decoded at once", minimum=1)
    max_step_tokens: int = setting(1024, "maximum tokens of one forward pass", minimum=1)
    max_context_tokens: int = setting(
        4096,
        "maximum tokens of one sequence",
        flag="max-model-len",
        minimum=1,
    )
    page_size: int = setting(32, "tokens per page of the KV cache", minimum=1)
    kv_cache_dtype: Literal["auto", "fp8"] = setting(
        "auto", "`fp8` for keys and values of a byte each; `auto` is bfloat16 here"
    )
    least_step_tokens: int | None = setting(
        None, "fewest tokens of a compiled step of the verifier; unset: 16", minimum=1
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True, slots=True)
class SurveySettings:
    """Settings of the survey: what is compiled, and the memory and context it is judged by."""

    memory_share: float = setting(
        0.9, "share of each chip's memory that may be used", above=0, maximum=1
    )
    context_tokens: int = setting(
        1024,
        "tokens that each sequence has already, for the modelled cost of attention; at most "
        "--max-model-len",
        minimum=0,
    )
    ends_only: bool = setting(
        False, "compile only the smallest and the largest program of each kind"
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """All settings of `blockdraft compile`."""

    topology: str = required("chips, such as `v5p:2x2x1`, `v5e:1x1` or `v6e:2x4`", metavar="TPU")
    tpu_split: str | None = setting(
        None,
        "chips of verifier and drafter in processes of their own; unset: all for a verifier that "
        "hosts the drafter or, with --drafter none, is alone",
        metavar="V+D",
    )
    target: str = setting(
        "llama-3.1-8b",
        "a published shape (`llama-3.1-8b`, `llama-3.2-1b`, `llama-3.2-3b`, `qwen3-0.6b`, "
        "`qwen3-1.7b`, `qwen3-4b`, `qwen3-8b`, `qwen3-14b`, `qwen3-32b`), for which no weights are "
        "needed, or a target as for `serve`",
        alias="model",
        metavar="SPEC",
    )
    drafter: str = setting(
        "dflash",
        "`dflash` or `eagle3` in their published shapes, a drafter's directory, or `none`",
        metavar="SPEC",
    )
    weights: Literal["float", "int8"] = setting(
        "float", "form of the target's matrices; `float` is bfloat16 here"
    )
    block_size: int = setting(
        16, "tokens per block, the anchor included, where the drafter does not say", minimum=2
    )
    prompt_lookup_block: int = setting(
        EngineSettings().prompt_lookup_block,
        "maximum tokens of a verification of what prompt lookup found; 1 for a service with "
        "--no-prompt-lookup",
        minimum=1,
    )
    limits: ServingLimits = group(ServingLimits)
    survey: SurveySettings = group(SurveySettings)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        if self.survey.context_tokens > self.limits.max_context_tokens:
            raise ValueError(
                f"--context-tokens must be at most --max-model-len, "
                f"got {self.survey.context_tokens}"
            )
