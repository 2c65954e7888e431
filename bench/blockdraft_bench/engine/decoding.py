"""The engine of the verifier, with or without drafting, as a function from requests to answers."""

import functools
import mmap
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from blockdraft_bench.answers import Answer
from blockdraft_bench.errors import BenchError
from blockdraft_bench.provenance import Drafter, Target
from blockdraft_drafter.method import DraftMethod
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.session import Session
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.drafting.feature_writers import (
    SHARED_BYTES,
    FeatureWriter,
    SharedWriter,
)
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest


class InProcessTransport:
    """A `DraftTransport` to a session of its own, and the `DraftLink` to it.

    What fails in the drafter is raised from `receive` as it is, not as a lost stream: an engine
    would decode on without drafts, and a measurement of drafts has to end instead.
    """

    def __init__(self, drafter: LoadedMethod) -> None:
        """Open a session of a drafter."""
        self.description = describe(drafter.method)
        # As between processes of one host.
        memory = mmap.mmap(-1, SHARED_BYTES)
        self.feature_writer: FeatureWriter = SharedWriter(memory)
        self._session = Session(drafter.method, drafter.pool, memory)
        self._requests: deque[pb.DraftRequest] = deque()

    def send(self, request: pb.DraftRequest) -> None:
        """Keep a request until its answer is asked for."""
        self._requests.append(request)

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        """Draft, and return the answer; there is one for every request.

        Here and not in `send`, so that the engine takes drafting for what it waited for.
        """
        if not self._requests:
            return None
        answer = self._session.step(self._requests.popleft())
        self.feature_writer.answered(answer.step_id)
        return answer

    def current(self) -> DraftTransport:
        """Return the transport."""
        return self

    def lost(self, transport: DraftTransport) -> None:
        """Refuse to go on without it."""
        raise BenchError("drafter and target got out of step; drafts were lost")

    def close(self) -> None:
        """Give the session's contexts back."""
        self._session.close()


def describe(method: DraftMethod, *, learns: bool = False) -> DrafterDescription:
    """Return what a handshake would tell of a method."""
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
        learns=learns,
    )


@dataclass(slots=True)
class _Recorder:
    """Listens to one request and hands its answer over at the end."""

    on_answer: Callable[[Answer], None]
    started: float = field(default_factory=time.perf_counter)
    events: list[TokensGained] = field(default_factory=list)

    def __call__(self, event: TokensGained) -> None:
        """Take in what one step gained."""
        self.events.append(event)
        if event.finish_reason is None:
            return
        # By the engine's clock, which is the same: in this process an event is told only after
        # the next proposal was drafted, so the first draft would not count as time of decoding.
        usage = event.usage
        assert usage is not None
        assert usage.first_token_time is not None
        assert usage.last_token_time is not None
        answer = Answer(
            token_ids=tuple(token for each in self.events for token in each.token_ids),
            # The first event follows the prompt: nothing was verified for it.
            steps=tuple((each.drafted, each.accepted) for each in self.events[1:]),
            stopped=event.finish_reason is FinishReason.STOP,
            ttft_seconds=usage.first_token_time - self.started,
            decode_seconds=usage.last_token_time - usage.first_token_time,
        )
        self.on_answer(answer)


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
        self_test: Callable[[ModelRunner], Exactness] | None = None,
    ) -> None:
        """Join the parts; `warm_up` must follow before `decode`.

        Args:
            decoder: The target.
            checkpoint: What it was loaded from.
            drafter: Drafts for this target; needs a slot for each of the config's sequences. None
                to decode plainly.
            config: Limits of the engine, and the draft policy: with "fixed" the numbers are the
                drafter's, with "adaptive" the scheduler's choice is among them.
            self_test: Finds at `warm_up` which steps round alike; None for never.
        """
        self.target = Target.of(checkpoint)
        if drafter is not None and drafter.target_fingerprint != checkpoint.fingerprint:
            raise ValueError(
                f"the drafter drafts for target {drafter.target_fingerprint},"
                f" not for {checkpoint.fingerprint}"
            )
        self._link = None if drafter is None else InProcessTransport(drafter)
        self._metrics = VerifierMetrics(CollectorRegistry())
        vocab_size = checkpoint.config.vocab_size
        self.runner = ModelRunner(decoder, config)
        test = None if self_test is None else functools.partial(self_test, self.runner)
        self._engine = Engine(
            self.runner, config, self._link, vocab_size, self._metrics, self_test=test
        )

    @property
    def drafter(self) -> Drafter:
        """The drafter; there has to be one."""
        assert self._link is not None
        found = self._link.description
        return Drafter(found.method, found.fingerprint, found.trained, found.block_size)

    @property
    def exactness(self) -> Exactness | None:
        """What the self-test found; None before `warm_up`, and without one."""
        return self._engine.exactness

    def warm_up(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Compile every step of the target; `progress` hears how many of how many are done."""
        self._engine.warm_up(progress)

    def decode(
        self, requests: Sequence[GenerationRequest], on_answer: Callable[[int, Answer], None]
    ) -> None:
        """Answer all requests, as many at a time as the engine takes.

        `on_answer` is called with the index of a request and its answer, in order of completion.
        Requests with `max_draft_tokens=0` are decoded plainly.
        """
        for index, request in enumerate(requests):
            self._engine.submit(request, _Recorder(functools.partial(on_answer, index)))
        while self._engine.step():
            if self._metrics.repair_count():
                raise BenchError("drafter and target got out of step; drafts were lost")

    def decode_alone(
        self, request: GenerationRequest, max_draft_tokens: int | None = None
    ) -> Answer:
        """Return the answer to one request, its prompt computed in full; 0 drafts nothing."""
        answers: list[Answer] = []
        self._engine.forget_prefixes()
        self.decode(
            [replace(request, max_draft_tokens=max_draft_tokens)],
            lambda _, answer: answers.append(answer),
        )
        [answer] = answers
        return answer

    def close(self) -> None:
        """End the drafter's session."""
        self._engine.stop()
