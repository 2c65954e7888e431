"""The engine of the verifier, with or without drafting, as a function from requests to answers."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from blockdraft_bench.answers import Answer
from blockdraft_bench.engine.in_process import InProcessTransport
from blockdraft_bench.errors import BenchError
from blockdraft_bench.provenance import Drafter
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest

Progress = Callable[[int, int], None]


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
        self.target = checkpoint
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
    def drafter(self) -> DrafterDescription:
        """The drafter; there has to be one."""
        assert self._link is not None
        return self._link.description

    @property
    def exactness(self) -> Exactness | None:
        """What the self-test found; None before `warm_up`, and without one."""
        return self._engine.exactness

    def warm_up(self, progress: Progress = lambda done, total: None) -> None:
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


def drafter_of(decoder: InProcessDecoder) -> Drafter:
    """Return what is said of a decoder's drafter."""
    found = decoder.drafter
    return Drafter(found.method, found.fingerprint, found.trained, found.block_size)
