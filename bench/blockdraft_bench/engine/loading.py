"""Loading a target and its drafters into one process, with room for every proposal in full."""

from dataclasses import dataclass

from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.errors import BenchUsageError
from blockdraft_drafter.app import load_method
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings, SchedulerSettings

# Prompts run in chunks of up to this many tokens, as they do by default in a verifier.
PROMPT_STEP_TOKENS = SchedulerSettings().max_step_tokens
# The queue is ours alone; nobody has to be refused.
MAX_WAITING = 1 << 20


@dataclass(frozen=True, slots=True)
class Capacity:
    """What target and drafter have room for: answers at a time, and tokens of prompt and answer."""

    concurrency: int
    context_tokens: int
    dtype: Dtype


def load_pair(
    target: str,
    drafter: str,
    capacity: Capacity,
    draft_policy: DraftPolicy,
    *,
    block_size: int,
    lookup: bool = False,
) -> InProcessDecoder:
    """Load a target and one drafter for it; `warm_up` is yet to come."""
    loaded = load_drafting(target, drafter, capacity, block_size=block_size)
    return join(*load_target(target, capacity), loaded, capacity, draft_policy, lookup=lookup)


def load_target(target: str, capacity: Capacity) -> tuple[Decoder, Checkpoint]:
    """Load a target, given as a directory, `.gguf` file, hub id or known name."""
    return load_decoder(resolve_target(target), dtype=serving_dtype(capacity.dtype))


def load_drafting(
    target: str, drafter: str, capacity: Capacity, *, block_size: int
) -> LoadedMethod:
    """Load a drafter with what it shares with its target, and compile its steps.

    `drafter` is as for `blockdraft drafter`, `block_size` that of a random one.
    """
    return load_method(
        DrafterSettings(
            target=target,
            drafter=drafter,
            max_sequences=capacity.concurrency,
            max_context_tokens=capacity.context_tokens,
            # What a step of the target computes goes to the drafter in one piece.
            max_feature_rows=PROMPT_STEP_TOKENS,
            block_size=block_size,
            dtype=capacity.dtype,
        )
    )


def join(
    decoder: Decoder,
    checkpoint: Checkpoint,
    drafter: LoadedMethod | None,
    capacity: Capacity,
    draft_policy: DraftPolicy,
    *,
    lookup: bool,
) -> InProcessDecoder:
    """Join a target with a drafter, lookup, both or neither; `warm_up` is yet to come."""
    block_size = largest_block(drafter, lookup=lookup)
    config = engine_settings(capacity, block_size, draft_policy, lookup=lookup)
    return InProcessDecoder(decoder, checkpoint, drafter, config)


def largest_block(drafter: LoadedMethod | None, *, lookup: bool) -> int:
    """Return the most tokens of a verification, the target's newest token included."""
    own = 1 if drafter is None else drafter.method.spec.block_size
    return max(own, EngineSettings().lookup_block) if lookup else own


def engine_settings(
    capacity: Capacity, block_size: int, draft_policy: DraftPolicy, *, lookup: bool
) -> EngineSettings:
    """Return limits under which no proposal is cut short and nobody is preempted.

    A step has room for a whole block of every sequence and one more token, which the scheduler
    keeps for a waiting prompt; the cache holds every sequence at full length.
    """
    page_size = EngineSettings().page_size
    blocks = next_power_of_two(capacity.concurrency * block_size + 1)
    return EngineSettings(
        scheduler=SchedulerSettings(
            max_sequences=capacity.concurrency,
            max_step_tokens=max(PROMPT_STEP_TOKENS, blocks),
            max_context_tokens=capacity.context_tokens,
            max_waiting=MAX_WAITING,
        ),
        num_pages=capacity.concurrency * (-(-capacity.context_tokens // page_size) + 1),
        dtype=capacity.dtype,
        draft_policy=draft_policy,
        lookup=lookup,
    )


def whole_proposal(wanted: int | None, block_size: int) -> int:
    """Return the tokens of a whole proposal: `wanted`, or all that a block holds."""
    most = block_size - 1
    if wanted is not None and not 1 <= wanted <= most:
        raise BenchUsageError(
            f"the draft length must be 1 to {most}, a block of {block_size} less its anchor;"
            f" got {wanted}"
        )
    return most if wanted is None else wanted
