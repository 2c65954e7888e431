"""An `InferenceService` over a real socket, with knobs for everything that can go wrong.

It completes every prompt with the same tokens, three per message: "one two three ..." with ids
1, 2, 3, ..., or the same JSON where JSON is demanded; what each usage figure amounts to can be
computed by hand from `USAGE`.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tests.patience import PATIENCE_SECONDS

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1.inference_pb2_grpc import (
    InferenceServiceServicer,
    add_InferenceServiceServicer_to_server,
)
from blockdraft_runtime.status import ServiceError

WORDS: tuple[str, ...] = ("one", " two", " three", " four", " five", " six")
TEXT = "".join(WORDS)
JSON_WORDS: tuple[str, ...] = ('{"city"', ": ", '"Oslo"', ', "degrees"', ": ", "7}")
TOKEN_IDS: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
TOKEN_SOURCES = [
    inference_pb2.TOKEN_SOURCE_DRAFTER,
    inference_pb2.TOKEN_SOURCE_TARGET,
    inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP,
    inference_pb2.TOKEN_SOURCE_GRAMMAR,
    inference_pb2.TOKEN_SOURCE_TARGET,
    inference_pb2.TOKEN_SOURCE_UNSPECIFIED,
]
TOKENS_PER_MESSAGE = 3


def duration(seconds: float) -> Duration:
    """Return a protobuf duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


USAGE = inference_pb2.Usage(
    prompt_tokens=4,
    output_tokens=6,
    drafted_tokens=8,
    accepted_tokens=3,
    verification_steps=2,
    cached_prompt_tokens=1,
    drafted_per_position=[2, 2, 2, 2],
    accepted_per_position=[2, 1, 0, 0],
    prompt_lookup_drafted_tokens=4,
    prompt_lookup_accepted_tokens=1,
    forced_tokens=1,
    queue_time=duration(0.25),
    prefill_time=duration(0.5),
    decode_time=duration(2.5),
    step_times=inference_pb2.StepTimes(
        verify_time=duration(1.0),
        draft_time=duration(0.75),
        transport_time=duration(0.5),
        host_time=duration(0.25),
    ),
)

MODEL = inference_pb2.GetModelResponse(
    model="fake",
    target_fingerprint="0123456789abcdef",
    vocabulary_size=100,
    max_context_tokens=64,
    drafter=inference_pb2.DraftModel(
        method="dflash", block_size=8, fingerprint="fedcba9876543210", trained=False
    ),
    version="1.2.3",
)


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass
class FakeInference(InferenceServiceServicer):
    """The service and its knobs."""

    initial_failures: int = 0  # calls that fail with UNAVAILABLE before one is served
    # What every call but GetModel ends with; streams only after `messages_before_error` messages.
    error: ServiceError | None = None
    messages_before_error: int = 0
    delay_seconds: float = 0.0  # pause before each message
    gate: threading.Event = field(default_factory=_open_gate)  # waited for before each message
    endless: bool = False  # whether streams go on until they are cancelled
    finish_reason: inference_pb2.FinishReason.ValueType = inference_pb2.FINISH_REASON_STOP
    model: inference_pb2.GetModelResponse = field(default_factory=lambda: MODEL)
    # Names of the methods called, in order, as are `requests` and `metadata`.
    calls: list[str] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    seconds_left: list[float] = field(default_factory=list)  # until the call's deadline
    # Set when a stream was cancelled by the client.
    cancelled: threading.Event = field(default_factory=threading.Event)

    def _begin(self, method: str, request: object, context: Any) -> None:
        self.calls.append(method)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.seconds_left.append(context.time_remaining())
        if len(self.calls) <= self.initial_failures:
            error = ServiceError(grpc.StatusCode.UNAVAILABLE, "LOADING", "still loading")
            context.abort_with_status(error.to_status())

    def _pause(self) -> None:
        time.sleep(self.delay_seconds)
        # A test that failed must not keep its server for ever.
        self.gate.wait(PATIENCE_SECONDS)

    def _fail(self, context: Any) -> None:
        if self.error is not None:
            context.abort_with_status(self.error.to_status())

    def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> inference_pb2.GenerateResponse:
        self._begin("Generate", request, context)
        self._pause()
        self._fail(context)
        words = self._words(request)
        return inference_pb2.GenerateResponse(
            request_id="request-1",
            model="fake",
            text="".join(words),
            token_ids=TOKEN_IDS[: len(words)],
            finish_reason=self.finish_reason,
            usage=USAGE,
        )

    def StreamGenerate(  # noqa: N802
        self, request: inference_pb2.StreamGenerateRequest, context: Any
    ) -> Iterator[inference_pb2.StreamGenerateResponse]:
        self._begin("StreamGenerate", request, context)
        ended = threading.Event()
        # Generators are not always resumed after a cancellation, the callback always comes.
        context.add_callback(lambda: None if ended.is_set() else self.cancelled.set())
        count, words = 0, self._words(request)
        while self.endless or count < len(words):
            if count // TOKENS_PER_MESSAGE >= self.messages_before_error:
                if self.error is not None:
                    ended.set()
                self._fail(context)
            self._pause()
            message = self._message(words, count % len(words))
            count += TOKENS_PER_MESSAGE
            if count >= len(words) and not self.endless:
                message.finish_reason = self.finish_reason
                message.usage.CopyFrom(USAGE)
                ended.set()
            if not context.is_active():
                return
            yield message

    def _words(
        self, request: inference_pb2.GenerateRequest | inference_pb2.StreamGenerateRequest
    ) -> tuple[str, ...]:
        kind = request.sampling.constraint.WhichOneof("kind") or ""
        words = JSON_WORDS if kind.startswith("json") else WORDS
        cut = self.finish_reason == inference_pb2.FINISH_REASON_LENGTH
        return words[:TOKENS_PER_MESSAGE] if cut else words

    def _message(self, words: tuple[str, ...], start: int) -> inference_pb2.StreamGenerateResponse:
        part = slice(start, start + TOKENS_PER_MESSAGE)
        log_probs = [
            inference_pb2.TokenLogProb(token_id=1, log_prob=-0.5, token=word.encode())
            for word in words[part]
        ]
        return inference_pb2.StreamGenerateResponse(
            text="".join(words[part]),
            token_ids=list(TOKEN_IDS[part]),
            log_probs=[inference_pb2.TokenLogProbs(chosen=chosen) for chosen in log_probs],
            token_sources=TOKEN_SOURCES[part],
            prompt_log_probs=[inference_pb2.TokenLogProbs()] if start == 0 else [],
            request_id="request-1" if start == 0 else "",
            model="fake" if start == 0 else "",
        )

    def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Any
    ) -> inference_pb2.TokenizeResponse:
        self._begin("Tokenize", request, context)
        self._fail(context)
        return inference_pb2.TokenizeResponse(token_ids=[7, 8], tokens=[b"a", b"\xc3"])

    def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest, context: Any
    ) -> inference_pb2.GetModelResponse:
        self._begin("GetModel", request, context)
        return self.model


@dataclass
class RunningFake:
    """A fake that is listening."""

    service: FakeInference
    health: health.HealthServicer
    target: str

    def set_serving(self, serving: bool) -> None:
        """Change what the health service reports for the whole server."""
        status = health_pb2.HealthCheckResponse
        self.health.set("", status.SERVING if serving else status.NOT_SERVING)


@contextlib.contextmanager
def running_fake(
    credentials: grpc.ServerCredentials | None = None,
    port: int = 0,
    service: FakeInference | None = None,
) -> Iterator[RunningFake]:
    """Serve a `FakeInference` on a loopback port."""
    service, checker = service or FakeInference(), health.HealthServicer()
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=8),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 20)],
    )
    add_InferenceServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    address = f"127.0.0.1:{port}"
    if credentials is None:
        bound = server.add_insecure_port(address)
    else:
        bound = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield RunningFake(service, checker, f"127.0.0.1:{bound}")
    finally:
        # Endless streams notice that they were cancelled and end.
        server.stop(grace=0.5).wait()
