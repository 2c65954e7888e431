"""Loading a target and its drafter into one process, with room for every proposal in full."""

from typing import Literal

from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_drafter.app import load_method
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.decoder.dtypes import compute_dtype
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import next_power_of_two

Dtype = Literal["auto", "float32", "bfloat16"]

# Prompts run in chunks of up to this many tokens, as they do by default in a verifier.
PROMPT_STEP_TOKENS = SchedulerSettings().max_step_tokens
# The queue is ours alone; nobody has to be refused.
MAX_WAITING = 1 << 20


def load_pair(
    target: str,
    drafter: str,
    *,
    block_size: int,
    concurrency: int,
    context_tokens: int,
    dtype: Dtype,
) -> InProcessDecoder:
    """Load target and drafter and compile the drafter's steps; the target's are yet to compile.

    Args:
        target: A directory, `.gguf` file, hub id or the default's name.
        drafter: A directory, hub id, `random[:seed]` or `auto`.
        block_size: Tokens per block of a random drafter.
        concurrency: Answers decoded at a time.
        context_tokens: Most tokens of prompt and answer together.
        dtype: Element type of weights, cache and contexts.

    Raises:
        ModelError: If one of them cannot be loaded, or they do not fit.
    """
    drafting = load_drafting(
        target,
        drafter,
        block_size=block_size,
        concurrency=concurrency,
        context_tokens=context_tokens,
        dtype=dtype,
    )
    config = engine_config(concurrency, drafting.method.spec.block_size, context_tokens, dtype)
    decoder, checkpoint = load_decoder(resolve_target(target), dtype=compute_dtype(config.dtype))
    return InProcessDecoder(decoder, checkpoint, drafting, config)


def load_drafting(
    target: str,
    drafter: str,
    *,
    block_size: int,
    concurrency: int,
    context_tokens: int,
    dtype: Dtype,
) -> LoadedMethod:
    """Load a drafter with what it shares with its target, and compile its steps.

    Args:
        target: A directory, `.gguf` file, hub id or the default's name.
        drafter: As for `blockdraft drafter`.
        block_size: Tokens per block of a random drafter.
        concurrency: Contexts held at a time.
        context_tokens: Most tokens of a context.
        dtype: Element type of weights and contexts.

    Raises:
        ModelError: If one of them cannot be loaded, or they do not fit.
    """
    return load_method(
        DrafterSettings(
            target=target,
            drafter=drafter,
            max_sequences=concurrency,
            max_context_tokens=context_tokens,
            # What a step of the target computes goes to the drafter in one piece.
            max_feature_rows=PROMPT_STEP_TOKENS,
            block_size=block_size,
            dtype=dtype,
        )
    )


def engine_config(
    concurrency: int,
    block_size: int,
    context_tokens: int,
    dtype: Dtype = "auto",
    draft_policy: DraftPolicy = "fixed",
) -> EngineSettings:
    """Return limits under which no proposal is cut short and nobody is preempted.

    A step has room for a whole block of every sequence and one more token, which the scheduler
    keeps for a waiting prompt; the cache holds every sequence at full length.
    """
    page_size = EngineSettings().page_size
    blocks = next_power_of_two(concurrency * block_size + 1)
    return EngineSettings(
        scheduler=SchedulerSettings(
            max_sequences=concurrency,
            max_step_tokens=max(PROMPT_STEP_TOKENS, blocks),
            max_context_tokens=context_tokens,
            max_waiting=MAX_WAITING,
        ),
        num_pages=concurrency * (-(-context_tokens // page_size) + 1),
        dtype=dtype,
        draft_policy=draft_policy,
    )
