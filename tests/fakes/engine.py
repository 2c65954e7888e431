"""An engine in virtual time: a target that is a function, a drafter that is one, callers of both.

Only steps of the target and waits for the drafter take time, as much as a test says.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tests.verifier.support import CONFIG, TINY_ENGINE, engine_over

from blockdraft_models.diffusion import Diffusion
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.inference_pb2 import TokenLogProb, TokenLogProbs
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket, bucket_for
from blockdraft_verifier.device.cache import FEATURE_DTYPE
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.step_runner import LaunchedStep, MeasuredSteps, StepResult
from blockdraft_verifier.drafting.feature_writers import MessageWriter
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftTransport, TransportError
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.row import Row, RowResult
from blockdraft_verifier.scheduling.sequence import GenerationRequest


@dataclass
class Clock:
    """Seconds that go on only where something says that they do."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def next_token(text: Sequence[int], request: GenerationRequest) -> int:
    """Return a choice of which all of the text counts."""
    return (sum(text) + len(text)) % CONFIG.vocab_size


class FakeRunner:
    """A `StepRunner` whose target is a function of the text.

    Steps of up to so many tokens take `seconds`, and `slopes` more for each token of a prompt's
    context; `steps` are the rows of all that ran. `on_step` hears when one begins and when it ends.
    """

    def __init__(
        self,
        settings: EngineSettings = TINY_ENGINE,
        seconds: Mapping[int, float] | None = None,
        slopes: Mapping[int, float] | None = None,
        *,
        target: Callable[[Sequence[int], GenerationRequest], int] = next_token,
        on_step: Callable[[str], None] = lambda when: None,
    ) -> None:
        self.settings, self.target, self.on_step = settings, target, on_step
        self.seconds = dict(seconds or {settings.scheduler.max_step_tokens: 0.0})
        self.slopes = dict(slopes or {})
        rows = settings.scheduler.max_sequences
        self.buckets = tuple(Bucket(rows, tokens, tokens) for tokens in sorted(self.seconds))
        self.slowness: Callable[[float], float] = lambda now: 1.0
        self.clock = Clock()
        self.features, self.max_block = NO_FEATURES, 0
        self.steps: list[tuple[Row, ...]] = []
        self.ahead = 0

    @property
    def diffusion(self) -> Diffusion | None:
        return None

    @property
    def feature_width(self) -> int:
        return self.features.width(CONFIG.hidden_size)

    def compiled_for(self, features: FeatureForm, max_block: int) -> bool:
        return self.features == features and self.max_block >= max_block

    def warm_up(
        self,
        features: FeatureForm,
        max_block: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> MeasuredSteps:
        self.features, self.max_block = features, max_block
        return MeasuredSteps(
            {bucket: self.seconds[bucket.tokens] for bucket in self.buckets},
            {bucket: self.slopes.get(bucket.tokens, 0.0) for bucket in self.buckets},
        )

    def take_steps(self, runner: Any) -> None:
        self.features, self.max_block = runner.features, runner.max_block

    def launch_ahead(self, rows: Sequence[Row]) -> LaunchedStep:
        self.ahead += 1

        def read(meanwhile: Callable[[], None]) -> StepResult:
            # Those that ended are left out by the engine; of the others the tokens are read by now.
            read_rows = [
                replace(row, token_ids=tuple(row.sequence.tokens[row.start :][: row.known_count]))
                for row in rows
            ]
            return self.run(read_rows, meanwhile)

        return read

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        self.on_step("begins")
        meanwhile()
        results, features, log_probs = [], [], []
        for row in rows:
            request = row.sequence.request
            text = [*row.sequence.tokens[: row.start], *row.token_ids]
            end = row.start + row.known_count
            while end < len(text) and text[end] == self.target(text[:end], request):
                end += 1
            accepted = end - row.start - row.known_count
            results.append(RowResult(accepted, self.target(text[:end], request)))
            features.append(np.zeros((end - row.start, self.feature_width), FEATURE_DTYPE))
            rivals = [TokenLogProb(token_id=token_id) for token_id in range(request.log_probs or 0)]
            entries = [TokenLogProbs(alternatives=rivals)] * (accepted + 1)
            log_probs.append([] if request.log_probs is None else entries)
        seconds = self.slowness(self.clock.now) * self.seconds_of(rows)
        self.clock.now += seconds
        self.steps.append(tuple(rows))
        self.on_step("ends")
        return StepResult(results, features, log_probs, seconds)

    def seconds_of(self, rows: Sequence[Row]) -> float:
        """Return what a step takes while the machine is as fast as it was measured."""
        size = bucket_for(self.buckets, len(rows), sum(len(row.token_ids) for row in rows)).tokens
        read = max((row.start + row.known_count for row in rows if row.known_count > 1), default=0)
        return self.seconds[size] + read * self.slopes.get(size, 0.0)


@dataclass
class FakeTransport:
    """Has what was sent, and gives responses that are queued, each when it is due."""

    description: DrafterDescription
    clock: Clock = field(default_factory=Clock)
    answer: Callable[[pb.DraftRequest], tuple[float, pb.DraftResponse] | None] = lambda request: (
        None
    )
    sent: list[pb.DraftRequest] = field(default_factory=list)
    responses: deque[tuple[float, pb.DraftResponse]] = field(default_factory=deque)
    waits: list[float] = field(default_factory=list)  # what was waited in vain
    broken: bool = False
    feature_writer: MessageWriter = field(default_factory=MessageWriter)

    def send(self, request: pb.DraftRequest) -> None:
        if self.broken:
            raise TransportError("broken")
        self.sent.append(request)
        if (answer := self.answer(request)) is not None:
            self.respond(answer[1], answer[0])

    def respond(self, response: pb.DraftResponse, after: float = 0.0) -> None:
        self.responses.append((self.clock.now + after, response))

    def receive(self, timeout_seconds: float) -> pb.DraftResponse | None:
        if self.broken:
            raise TransportError("broken")
        if self.responses and self.responses[0][0] <= self.clock.now + timeout_seconds:
            due, response = self.responses.popleft()
            self.clock.now = max(self.clock.now, due)
            return response
        if timeout_seconds > 0:
            self.clock.now += timeout_seconds
            self.waits.append(timeout_seconds)
        return None

    def close(self) -> None:
        self.broken = True


@dataclass
class FakeLink:
    """Has one transport, or with `again` another one after each that is lost."""

    transport: FakeTransport | None
    again: Callable[[], FakeTransport | None] = lambda: None

    def current(self) -> DraftTransport | None:
        return self.transport

    def lost(self, transport: DraftTransport) -> None:
        assert transport is self.transport
        self.transport = self.again()

    def close(self) -> None:
        self.transport = None


def virtual_engine(runner: FakeRunner, link: FakeLink | None = None) -> Engine:
    """Return an engine that has the clock of its runner."""
    return engine_over(runner, runner.settings, link, clock=runner.clock)


@dataclass(frozen=True)
class Machine:
    """Seconds of steps of up to so many tokens, and of drafts for 1, 2, 4, ... sequences."""

    seconds: dict[int, float]
    drafts: tuple[float, ...]
    block: int = 8
    slopes: dict[int, float] = field(default_factory=dict)


@dataclass
class Service:
    """Callers that ask anew as soon as they have a completion, of an engine in virtual time.

    A drafted token is right at `right`, if those before it are; for every second request half as
    often with `uneven`. 0 is no drafter. A text goes on as it did before at `repeats`, at each
    token. A draft goes on at `goes_on` after each token, where a pass makes each.
    """

    machine: Machine
    callers: int
    right: float
    prompt: tuple[int, int] = (20, 60)
    output: int = 40
    uneven: bool = False
    repeats: float = 0.0
    goes_on: float | None = None
    settings: EngineSettings = field(default_factory=lambda: EngineSettings(num_pages=1024))
    rows: int = 0  # as many as callers, if none are stated

    def __post_init__(self) -> None:
        machine = self.machine
        limits = SchedulerSettings(self.rows or self.callers, max(machine.seconds), 2048)
        settings = replace(self.settings, scheduler=limits)
        self.runner = FakeRunner(settings, machine.seconds, machine.slopes, target=self._true_token)
        self.clock, self.random = self.runner.clock, random.Random(0)
        self.texts: dict[str, list[int]] = {}
        self.drafted_for: dict[int, str] = {}
        self.tokens = 0
        self.first_token_seconds: list[float] = []
        self.transport = FakeTransport(self._description(), self.clock, self._draft)
        self.engine = virtual_engine(self.runner, FakeLink(self.transport) if self.right else None)

    def run(self, requests: int) -> float:
        """Answer so many requests, and return the tokens per second."""
        for _ in range(self.callers):
            self.ask()
        while len(self.first_token_seconds) < requests:
            self.engine.step()
        return self.tokens / self.clock.now

    def ask(self, length: int = 0) -> None:
        length = length or self.random.randint(*self.prompt)
        text, source = [self.random.randrange(50)], 0
        while len(text) < length + self.output + self.machine.block:
            repeating = self.random.random() < self.repeats
            source = source + 1 if repeating else self.random.randrange(len(text))
            fresh = not self.repeats or source >= len(text)
            text.append(self.random.randrange(CONFIG.vocab_size) if fresh else text[source])
        name, arrival = str(len(self.texts)), self.clock.now
        self.texts[name] = text

        def hear(event: TokensGained) -> None:
            self.tokens += len(event.token_ids)
            if event.usage is not None and event.usage.first_token_time is not None:
                self.first_token_seconds.append(event.usage.first_token_time - arrival)
                self.ask()

        request = GenerationRequest(name, tuple(text[:length]), max_output_tokens=self.output)
        self.engine.submit(request, hear)

    def decisions(self) -> str:
        """Return a hash of all rows, drafts and waits so far."""
        rows = [
            [
                (row.sequence.request.request_id, row.start, row.token_ids, row.source.value)
                for row in step
            ]
            for step in self.runner.steps
        ]
        waits = [round(wait, 9) for wait in self.transport.waits]
        return hashlib.sha256(repr((rows, waits)).encode()).hexdigest()[:8]

    def _true_token(self, text: Sequence[int], request: GenerationRequest) -> int:
        return self.texts[request.request_id][len(text)]

    def _draft(self, request: pb.DraftRequest) -> tuple[float, pb.DraftResponse]:
        """Draft for all sequences of a request, and return the seconds that it takes."""
        response, longest, asked = pb.DraftResponse(step_id=request.step_id), 0, 0
        for part in request.sequences:
            name = self.drafted_for.setdefault(part.sequence_id, part.request_id)
            start, tokens = part.context_start + part.feature_rows + 1, list[int]()
            right = self.right / (2 if self.uneven and int(name) % 2 else 1)
            while len(tokens) < part.draft_length:
                true = self.texts[name][start + len(tokens)]
                wrong = (true + 1) % CONFIG.vocab_size
                tokens.append(true if self.random.random() < right else wrong)
                if self.goes_on is not None and self.random.random() > self.goes_on:
                    break
            longest, asked = max(longest, len(tokens)), asked + bool(tokens)
            length = part.context_start + part.feature_rows
            response.drafts.add(
                sequence_id=part.sequence_id, context_length=length, token_ids=tokens
            )
        drafts = self.machine.drafts
        seconds = drafts[min((asked - 1).bit_length(), len(drafts) - 1)] if asked else 0.0
        if self.goes_on is not None:
            seconds *= (1 + longest) / self.machine.block
        response.timings.compute_time.FromNanoseconds(round(1e9 * seconds))
        return seconds + 0.0005 * bool(asked), response

    def _description(self) -> DrafterDescription:
        drafts = self.machine.drafts
        return DrafterDescription(
            method="by rule",
            block_size=self.machine.block,
            features=FeatureForm((0,)),
            feature_width=CONFIG.hidden_size,
            max_feature_rows=2048,
            max_context_tokens=2048,
            fingerprint="0" * 16,
            trained=True,
            step_seconds=drafts,
            shortest_step_seconds=()
            if self.goes_on is None
            else tuple(each / 4 for each in drafts),
        )
