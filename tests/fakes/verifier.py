"""A verifier without a model, on a real socket, whose tokens can be worked out by hand.

The next token of a sequence is the letter number `sum(ids) % 26`, as a byte: after the prompt
[1, 2] comes 97 + 3 = "d" (100), then 97 + 103 % 26 = "z" (122), and so on. It depends on the
sequence alone, so a completion is the same however often it is taken up again. The first message
holds one token, later ones `tokens_per_step`, as if `tokens_per_step - 1` drafts were accepted
each time.
"""

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from blockdraft_protos.v1 import inference_pb2, verifier_pb2, verifier_pb2_grpc
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.status import ServiceError, unary_errors
from blockdraft_server.admission import loading

SERVICE = "blockdraft.v1.VerifierService"


def letter(token_ids: Sequence[int]) -> int:
    """Return the token that follows `token_ids`."""
    return 97 + sum(token_ids) % 26


def completion(prompt: Sequence[int], count: int) -> list[int]:
    """Return the first `count` tokens that follow `prompt`."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(letter(token_ids))
    return token_ids[len(prompt) :]


@dataclass
class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """The servicer; its attributes are knobs and records."""

    tokens_per_step: int = 3  # tokens of each message but the first
    script: Sequence[int] | None = None  # tokens to complete with instead of the letters
    # For each coming sequence, after how many messages it breaks the whole stream with
    # `break_code`; None never. Sequences beyond the list do not.
    break_after: list[int | None] = field(default_factory=list)
    break_always: bool = False  # break the stream before the first message of every sequence
    break_code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    refusal: ServiceError | None = None  # an error to end every sequence with at once
    full: int = 0  # how many of the coming sequences are refused with QUEUE_FULL
    # A prompt that kills the process after `poison_after` messages.
    poison: Sequence[int] | None = None
    poison_after: int = 1
    # For each time that the process died: how many sequences ran, and had had less than 32 tokens
    # from it. It is there again at once, as another process.
    deaths: list[int] = field(default_factory=list)
    delay_seconds: float = 0.0  # pause before each message
    # After how many messages each sequence waits for `go_on`; None for never.
    hold_after: int | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    description: verifier_pb2.VerifierServiceDescribeResponse = field(
        default_factory=lambda: verifier_pb2.VerifierServiceDescribeResponse(
            model="letters",
            target_fingerprint="0123456789abcdef",
            computation_fingerprint="00112233445566ff",
            vocabulary_size=300,
            max_context_tokens=64,
            max_sequences=4,
            process=uuid.uuid4().hex,
        )
    )
    start_message: str | None = None
    load: verifier_pb2.GetLoadResponse = field(default_factory=verifier_pb2.GetLoadResponse)
    requests: list[verifier_pb2.SequenceRequest] = field(default_factory=list)
    streams: int = 0
    sent: int = 0  # number of messages that left on any stream
    cancelled: int = 0
    address: str = ""  # where it was served last
    health: HealthServicer = field(default_factory=HealthServicer)
    _outboxes: "list[asyncio.Queue[verifier_pb2.SequenceTokens | None]]" = field(
        default_factory=list
    )
    _gained: dict[object, int] = field(default_factory=dict)
    _server: grpc.aio.Server | None = None

    async def crash(self) -> None:
        """End the server that `running_verifier` made; its address is free for another."""
        assert self._server is not None
        await self._server.stop(None)

    async def Decode(  # noqa: N802
        self,
        requests: AsyncIterator[verifier_pb2.DecodeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """Complete with letters, or with the script."""
        self.streams += 1
        # None breaks the stream.
        outbox: asyncio.Queue[verifier_pb2.SequenceTokens | None] = asyncio.Queue()
        tasks: dict[int, asyncio.Task[None]] = {}
        self._outboxes.append(outbox)
        reading = asyncio.ensure_future(self._read(requests, outbox, tasks))
        try:
            while (message := await outbox.get()) is not None:
                yield verifier_pb2.DecodeResponse(sequences=[message])
                self.sent += 1
            await context.abort(self.break_code, "broken on purpose")
        finally:
            self._outboxes.remove(outbox)
            reading.cancel()
            for task in tasks.values():
                task.cancel()

    async def _read(
        self,
        requests: AsyncIterator[verifier_pb2.DecodeRequest],
        outbox: "asyncio.Queue[verifier_pb2.SequenceTokens | None]",
        tasks: dict[int, asyncio.Task[None]],
    ) -> None:
        async for request in requests:
            number = request.sequence_id
            if request.HasField("begin"):
                self.requests.append(request.begin)
                coroutine = self._complete(number, request.begin, outbox)
                tasks[number] = asyncio.ensure_future(coroutine)
            elif tasks[number].cancel():
                self.cancelled += 1

    async def _complete(
        self,
        number: int,
        request: verifier_pb2.SequenceRequest,
        outbox: "asyncio.Queue[verifier_pb2.SequenceTokens | None]",
    ) -> None:
        refusal = self.refusal
        if self.full > 0:
            self.full -= 1
            refusal = ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full", retry_after_seconds=1.0
            )
        if refusal is not None:
            message = verifier_pb2.SequenceTokens(sequence_id=number)
            message.error.Pack(refusal.to_proto())
            outbox.put_nowait(message)
            return
        limit = 0 if self.break_always else self.break_after.pop(0) if self.break_after else None
        running = object()
        self._gained[running] = 0
        try:
            for index, message in enumerate(self._messages(request)):
                if index == limit:
                    outbox.put_nowait(None)
                    return
                if list(request.prompt_token_ids) == self.poison and index == self.poison_after:
                    self.die()
                await asyncio.sleep(self.delay_seconds)
                if index == self.hold_after:
                    await self.go_on.wait()
                message.sequence_id = number
                outbox.put_nowait(message)
                self._gained[running] += len(message.token_ids)
        finally:
            del self._gained[running]

    def die(self) -> None:
        """End all streams as a process does that dies, and be another process."""
        self.deaths.append(sum(tokens < 32 for tokens in self._gained.values()))
        self.description.process = uuid.uuid4().hex
        for outbox in self._outboxes:
            outbox.put_nowait(None)

    @unary_errors
    async def Describe(  # noqa: N802
        self, request: verifier_pb2.VerifierServiceDescribeRequest, context: object
    ) -> verifier_pb2.VerifierServiceDescribeResponse:
        """Answer with `description`, or while there is a `start_message` with that."""
        if self.start_message is not None:
            raise loading(self.start_message)
        return self.description

    async def GetLoad(  # noqa: N802
        self, request: verifier_pb2.GetLoadRequest, context: object
    ) -> verifier_pb2.GetLoadResponse:
        """Answer with `load`."""
        return self.load

    async def set_healthy(self, healthy: bool) -> None:
        """Report SERVING or NOT_SERVING from now on."""
        status = health_pb2.HealthCheckResponse
        await self.health.set(SERVICE, status.SERVING if healthy else status.NOT_SERVING)

    def _messages(self, request: verifier_pb2.SequenceRequest) -> list[verifier_pb2.SequenceTokens]:
        emitted = list(request.emitted_token_ids)
        new: list[int] = []
        finish = inference_pb2.FINISH_REASON_LENGTH
        while len(emitted) + len(new) < request.sampling.max_output_tokens:
            so_far = [*emitted, *new]
            token = (
                letter([*request.prompt_token_ids, *so_far])
                if self.script is None
                else self.script[len(so_far)]
            )
            new.append(token)
            if token in request.sampling.stop_token_ids:
                finish = inference_pb2.FINISH_REASON_STOP
                break
        size = self.tokens_per_step
        chunks = [new[:1], *(new[start : start + size] for start in range(1, len(new), size))]
        messages = [
            verifier_pb2.SequenceTokens(
                token_ids=chunk,
                step_sizes=[len(chunk)],
                sources=[inference_pb2.TOKEN_SOURCE_DRAFTER] * (len(chunk) - 1)
                + [inference_pb2.TOKEN_SOURCE_TARGET],
                log_probs=_log_probs(chunk, request.sampling.log_probs)
                if request.sampling.HasField("log_probs")
                else [],
            )
            for chunk in chunks
        ]
        if request.sampling.HasField("prompt_log_probs") and not emitted:
            count = request.sampling.prompt_log_probs
            messages[0].prompt_log_probs.extend(_log_probs(request.prompt_token_ids[1:], count))
        messages[-1].finish_reason = finish
        usage = messages[-1].usage
        usage.prompt_tokens = len(request.prompt_token_ids)
        usage.output_tokens = len(new)
        usage.verification_steps = len(chunks) - 1
        usage.drafted_tokens = (len(chunks) - 1) * (size - 1)
        usage.accepted_tokens = len(new) - len(chunks)
        for position in range(1, size):
            usage.drafted_per_position.append(len(chunks) - 1)
            usage.accepted_per_position.append(sum(len(c) > position for c in chunks[1:]))
        usage.step_times.verify_time.FromMilliseconds(10)
        return messages


def _log_probs(token_ids: Sequence[int], count: int) -> list[inference_pb2.TokenLogProbs]:
    entry = inference_pb2.TokenLogProb
    return [
        inference_pb2.TokenLogProbs(
            chosen=entry(token_id=token, log_prob=-0.5),
            alternatives=[
                entry(token_id=token + rank, log_prob=-0.5 - rank) for rank in range(count)
            ],
        )
        for token in token_ids
    ]


@contextlib.asynccontextmanager
async def running_verifier(
    fake: FakeVerifier,
    address: str | None = None,
    *,
    healthy: bool = True,
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[str]:
    """Serve `fake`, on a unix socket if need be, while the context lasts; gives its address."""
    with contextlib.ExitStack() as stack:
        if address is None:
            address = stack.enter_context(unix_address())
        server = grpc.aio.server(options=SERVER_OPTIONS)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(fake, server)
        # A fresh one: a servicer that has shut down stays so.
        fake.health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
        await fake.set_healthy(healthy)
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
        await server.start()
        fake.address, fake._server = address, server
        try:
            yield address
        finally:
            await server.stop(None)


@contextlib.contextmanager
def unix_address() -> Iterator[str]:
    # Not pytest's tmp_path, whose names exceed what a socket address may hold.
    folder = tempfile.mkdtemp(prefix="bd-")
    try:
        yield f"unix:{Path(folder) / 'v.sock'}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
