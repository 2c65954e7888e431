"""The engine of the verifier, with or without drafting, as a function from requests to completions.

Targets and drafters are loaded into one process, with capacity for every draft in full.
"""

import functools
import mmap
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.errors import BenchError, BenchUsageError
from blockdraft_bench.provenance import DrafterIdentity, Target
from blockdraft_drafter.app import load_method
from blockdraft_drafter.method import DraftMethod
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.session import Session
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.executables import next_power_of_two
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.drafting.feature_writers import (
    SHARED_BYTES,
    MessageWriter,
    SharedWriter,
)
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest

# Prompts run in chunks of up to this many tokens, as they do by default in a verifier.
PROMPT_STEP_TOKENS = SchedulerSettings().max_step_tokens
# The queue is only for the benchmark; no request has to be refused.
MAX_WAITING = 1 << 20


class InProcessTransport:
    """A `DraftTransport` to a session of its own, and the `DraftLink` to it.

    Errors of the drafter are raised from `receive` as they are, not as a lost stream: an engine
    would decode on without drafts, and a measurement of drafts has to end instead.
    """

    def __init__(self, drafter: LoadedMethod) -> None:
        """Open a session of a drafter."""
        self.description = describe(drafter.method)
        # As between processes of one host.
        memory = mmap.mmap(-1, SHARED_BYTES)
        self.feature_writer: MessageWriter = SharedWriter(memory)
        self._session = Session(drafter.method, drafter.pool, memory)
        self._requests: deque[pb.DraftRequest] = deque()

    def send(self, request: pb.DraftRequest) -> None:
        """Keep a request until its response is received."""
        self._requests.append(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Draft, and return the response; there is one for every request.

        Drafting happens here and not in `send`, so that the engine counts it as waiting.
        """
        if not self._requests:
            return None
        response = self._session.step(self._requests.popleft())
        self.feature_writer.answered(response.step_id)
        return response

    def current(self) -> DraftTransport:
        """Return the transport."""
        return self

    def lost(self, transport: DraftTransport) -> None:
        """Refuse to go on without it."""
        raise BenchError("drafter and target got out of step; drafts were lost")

    def close(self) -> None:
        """Release the session's draft KV caches."""
        self._session.close()


def describe(method: DraftMethod) -> DrafterDescription:
    """Return the description of a method, as a handshake would."""
    spec, projection = method.spec, method.spec.projection
    fingerprint = "" if projection is None else projection.fingerprint()
    return DrafterDescription(
        method=spec.name,
        block_size=spec.block_size,
        features=FeatureForm(spec.target_layer_ids, projection, fingerprint),
        feature_width=spec.feature_width,
        max_feature_rows=spec.max_feature_rows,
        max_context_tokens=spec.max_context_tokens,
        fingerprint=spec.fingerprint,
        trained=spec.trained,
        step_seconds=tuple(method.step_seconds),
        shortest_step_seconds=tuple(method.shortest_step_seconds),
    )


@dataclass(slots=True)
class _Recorder:
    """Listens to one request and hands its completion over at the end."""

    on_completion: Callable[[CompletionRecord], None]
    started: float = field(default_factory=time.perf_counter)
    events: list[TokensGained] = field(default_factory=list)

    def __call__(self, event: TokensGained) -> None:
        """Add the tokens of one step; after the last step, hand over the completion."""
        self.events.append(event)
        if event.finish_reason is None:
            return
        # By the engine's clock, which is the same: in this process an event arrives only after the
        # next draft was made, so the first draft would not count as time of decoding.
        usage = event.usage
        assert usage is not None
        assert usage.first_token_time is not None
        assert usage.last_token_time is not None
        completion = CompletionRecord(
            token_ids=tuple(token for gain in self.events for token in gain.token_ids),
            # The first event follows the prompt: nothing was verified for it.
            steps=tuple((gain.drafted, gain.accepted) for gain in self.events[1:]),
            stopped=event.finish_reason is FinishReason.STOP,
            ttft_seconds=usage.first_token_time - self.started,
            decode_seconds=usage.last_token_time - usage.first_token_time,
        )
        self.on_completion(completion)


class InProcessDecoder:
    """Target and drafter in this process, decoding many requests at a time.

    Its methods raise `BenchError` if drafter and target got out of step, so that drafts were lost.
    """

    def __init__(
        self,
        decoder: Decoder,
        checkpoint: Checkpoint,
        drafter: LoadedMethod | None,
        config: EngineSettings,
        self_test: Callable[[ModelRunner, Mapping[Bucket, float]], Exactness] | None = None,
    ) -> None:
        """Join a target with its drafter; `warm_up` must follow before `decode`.

        The drafter needs a slot for each of the config's sequences. With the draft policy "fixed"
        the numbers are the drafter's alone, with "adaptive" the scheduler's choice counts too.
        `self_test` finds at `warm_up` which steps are batch-invariant.
        """
        self.target = Target.of(checkpoint)
        self._link = None if drafter is None else InProcessTransport(drafter)
        self._metrics = VerifierMetrics(CollectorRegistry())
        vocab_size = checkpoint.config.vocab_size
        self.runner = ModelRunner(decoder, config)
        self._engine = Engine(
            self.runner, config, self._link, vocab_size, self._metrics, self_test=self_test
        )

    @property
    def drafter(self) -> DrafterIdentity:
        """The drafter; there has to be one."""
        assert self._link is not None
        description = self._link.description
        return DrafterIdentity(
            description.method,
            description.fingerprint,
            description.trained,
            description.block_size,
        )

    @property
    def exactness(self) -> Exactness | None:
        """The result of the self-test; None before `warm_up`, and without one."""
        return self._engine.exactness

    def warm_up(self, progress: Callable[[int, int], None] = lambda count, total: None) -> None:
        """Compile every step of the target; `progress` gets their count and the total."""
        self._engine.warm_up(progress)

    def decode(
        self,
        requests: Sequence[GenerationRequest],
        on_completion: Callable[[int, CompletionRecord], None],
    ) -> None:
        """Answer all requests, as many at a time as the engine takes.

        `on_completion` is called with the index of a request and its completion, in order of
        completion. Requests with `max_draft_tokens=0` are decoded plainly.
        """
        for index, request in enumerate(requests):
            self._engine.submit(request, _Recorder(functools.partial(on_completion, index)))
        while self._engine.step():
            if self._metrics.repair_count():
                raise BenchError("drafter and target got out of step; drafts were lost")

    def decode_alone(
        self, request: GenerationRequest, max_draft_tokens: int | None = None
    ) -> CompletionRecord:
        """Return the completion to one request, its prompt computed in full; 0 drafts nothing."""
        completions: list[CompletionRecord] = []
        self._engine.forget_prefixes()
        self.decode(
            [replace(request, max_draft_tokens=max_draft_tokens)],
            lambda _, completion: completions.append(completion),
        )
        [completion] = completions
        return completion

    def close(self) -> None:
        """End the drafter's session."""
        self._engine.stop()


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Capacity of the engine, target and drafter alike: sequences at a time, and tokens of each."""

    concurrency: int
    context_tokens: int
    dtype: Dtype


def load_pair(
    target: str,
    drafter: str,
    capacity: EngineCapacity,
    draft_policy: DraftPolicy,
    *,
    block_size: int,
    prompt_lookup: bool = False,
) -> InProcessDecoder:
    """Load a target and one drafter for it; `warm_up` is yet to come."""
    loaded = load_drafting(target, drafter, capacity, block_size=block_size)
    return join(
        *load_target(target, capacity), loaded, capacity, draft_policy, prompt_lookup=prompt_lookup
    )


def load_target(target: str, capacity: EngineCapacity) -> tuple[Decoder, Checkpoint]:
    """Load a target, given as a directory, `.gguf` file, hub id or known name."""
    return load_decoder(resolve_target(target), dtype=serving_dtype(capacity.dtype))


def load_drafting(
    target: str, drafter: str, capacity: EngineCapacity, *, block_size: int
) -> LoadedMethod:
    """Load a drafter with what it shares with its target, and compile its steps.

    `drafter` is as for `blockdraft drafter`, `block_size` that of a random one.
    """
    return load_method(
        DrafterSettings(
            target=target,
            drafter=drafter,
            max_sequences=capacity.concurrency,
            max_model_len=capacity.context_tokens,
            # The features of a step of the target go to the drafter in one piece.
            max_feature_rows=PROMPT_STEP_TOKENS,
            block_size=block_size,
            dtype=capacity.dtype,
        )
    )


def join(
    decoder: Decoder,
    checkpoint: Checkpoint,
    drafter: LoadedMethod | None,
    capacity: EngineCapacity,
    draft_policy: DraftPolicy,
    *,
    prompt_lookup: bool,
) -> InProcessDecoder:
    """Join a target with a drafter, prompt lookup, both or neither; `warm_up` is yet to come."""
    block_size = largest_block(drafter, prompt_lookup=prompt_lookup)
    config = engine_settings(capacity, block_size, draft_policy, prompt_lookup=prompt_lookup)
    return InProcessDecoder(decoder, checkpoint, drafter, config)


def largest_block(drafter: LoadedMethod | None, *, prompt_lookup: bool) -> int:
    """Return the most tokens of a verification, the target's newest token included."""
    block_size = 1 if drafter is None else drafter.method.spec.block_size
    return max(block_size, EngineSettings().prompt_lookup_block) if prompt_lookup else block_size


def engine_settings(
    capacity: EngineCapacity, block_size: int, draft_policy: DraftPolicy, *, prompt_lookup: bool
) -> EngineSettings:
    """Return limits under which no draft is cut short and no sequence is preempted.

    A step holds a whole block of every sequence and one more token, which the scheduler
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
        prompt_lookup=prompt_lookup,
        # A prompt is completed by each method and at each temperature.
        recent_completions=0,
    )


def whole_draft(draft_length: int | None, block_size: int) -> int:
    """Return the tokens of a whole draft: `draft_length`, or all that a block holds."""
    longest = block_size - 1
    if draft_length is not None and not 1 <= draft_length <= longest:
        raise BenchUsageError(
            f"the draft length must be 1 to {longest}, a block of {block_size} less its anchor;"
            f" got {draft_length}"
        )
    return longest if draft_length is None else draft_length
