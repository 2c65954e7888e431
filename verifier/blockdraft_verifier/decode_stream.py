"""One stream to a server: its sequences, and their results that have not been sent yet."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine
from functools import partial
from typing import Any

import grpc
from llguidance import LLMatcher

from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_runtime.status import ServiceError, invalid_argument, service_error
from blockdraft_verifier.engine.listeners import Listener, StepEnd, TokensGained
from blockdraft_verifier.grammars.compilation import FIELD
from blockdraft_verifier.grammars.compiler import GrammarCompiler
from blockdraft_verifier.requests import add_step
from blockdraft_verifier.scheduling.grammar import Grammar, GrammarError
from blockdraft_verifier.scheduling.sequence import FinishReason, TokenSequence

logger = logging.getLogger(__name__)

# Keeps a message far below what gRPC takes: with 20 alternatives a token has about 200 bytes.
MAX_MESSAGE_TOKENS = 16384
# Refusals of about 2 kB that have not been sent: with so many, a server's requests are not read.
MAX_REFUSED = 256

Submit = Callable[[pb.SequenceRequest, LLMatcher | None, Listener, StepEnd], TokenSequence]

_GRAMMAR_FAILED = ServiceError(
    grpc.StatusCode.FAILED_PRECONDITION,
    "CONSTRAINT_TOO_COMPLEX",
    "the completion cannot be followed through its constraint any further",
    field=FIELD,
)


class DecodeStream:
    """The sequences of one stream.

    The engine's thread hands over what a step gained for all of them at once. Results that have
    not been sent are kept by sequence and go out in as few messages as they fit into. So a server
    that does not read costs no more memory than its completions.
    """

    def __init__(
        self,
        submit: Submit,
        cancel: Callable[[TokenSequence], None],
        resume: Callable[[TokenSequence, Grammar], None],
        grammars: GrammarCompiler,
    ) -> None:
        """Begin without sequences, on the running event loop."""
        self._submit = submit
        self._cancel = cancel
        self._resume = resume
        self._grammars = grammars
        self._loop = asyncio.get_running_loop()
        # Sequences whose last message has not been sent.
        self._sequences: dict[int, TokenSequence] = {}
        self._refused: dict[int, ServiceError] = {}
        # Requests whose grammars are being compiled.
        self._compiling: dict[int, asyncio.Task[None]] = {}
        self._unsent: dict[int, deque[TokensGained]] = {}
        # Results of the present step; only the engine's thread touches them.
        self._step: list[tuple[int, TokensGained]] = []
        self._closing = False
        self._changed = asyncio.Event()
        # Set once refusals have been sent.
        self._room_made = asyncio.Event()

    def drain(self) -> None:
        """End the stream as soon as its sequences have ended."""
        self._closing = True
        self._changed.set()

    async def serve(
        self, requests: AsyncIterable[pb.DecodeRequest]
    ) -> AsyncGenerator[pb.DecodeResponse, None]:
        """Yield the messages of the stream, and do what `requests` ask for meanwhile.

        Ends when all requests have come or `drain` was called, and no sequence is left. When the
        generator is closed, or requests break the rules of the stream, the sequences that are left
        are cancelled.
        """
        reading = asyncio.ensure_future(self._read(requests))
        try:
            while True:
                while self._refused or self._unsent:
                    yield self._response()
                if reading.done():
                    reading.result()
                if self._closing and not self._sequences and not self._compiling:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            for sequence in self._sequences.values():
                self._cancel(sequence)
            self._sequences.clear()
            tasks = (reading, *self._compiling.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterable[pb.DecodeRequest]) -> None:
        try:
            async for request in requests:
                while len(self._refused) >= MAX_REFUSED:
                    self._room_made.clear()
                    await self._room_made.wait()
                match request.WhichOneof("action"):
                    case "begin":
                        self._begin(request.sequence_id, request.begin)
                    case "cancel":
                        self._forget(request.sequence_id)
                    case _:
                        raise invalid_argument("action", "action must be set")
        finally:
            self.drain()

    def _begin(self, number: int, request: pb.SequenceRequest) -> None:
        if number in self._sequences or number in self._refused or number in self._compiling:
            message = f"sequence {number} was begun before"
            raise invalid_argument("sequence_id", message, sequence_id=number)
        if request.grammar:
            self._compile(number, self._begin_compiled(number, request))
        else:
            self._start(number, request)

    def _compile(self, number: int, compiling: Coroutine[Any, Any, None]) -> None:
        task = self._compiling[number] = asyncio.ensure_future(compiling)
        # Called too if the task is cancelled before it begins.
        task.add_done_callback(lambda _: self._end_compiling(number))

    async def _begin_compiled(self, number: int, request: pb.SequenceRequest) -> None:
        try:
            grammar = await self._grammars.compile(
                request.grammar, request.cache_salt, request.emitted_token_ids
            )
            self._start(number, request, grammar)
        except GrammarError:
            self._refuse(number, _GRAMMAR_FAILED)
        except Exception as error:
            self._refuse(number, service_error(error))

    async def _compile_alone(self, number: int) -> None:
        """Give a sequence a parser in place of one that gave up."""
        sequence = self._sequences[number]
        request, output = sequence.request, sequence.tokens[len(sequence.request.prompt) :]
        try:
            parser = await self._grammars.compile_alone(
                request.grammar_text, request.cache_salt, output
            )
            self._resume(sequence, Grammar(parser, alone=True))
        except Exception as error:
            self._cancel(sequence)
            if not isinstance(error, GrammarError):
                logger.exception("a grammar could not be compiled again")
            failed = TokensGained((), finish_reason=FinishReason.GRAMMAR_FAILED)
            self._unsent.setdefault(number, deque()).append(failed)

    def _end_compiling(self, number: int) -> None:
        del self._compiling[number]
        self._changed.set()

    def _start(
        self, number: int, request: pb.SequenceRequest, grammar: LLMatcher | None = None
    ) -> None:
        try:
            self._sequences[number] = self._submit(
                request, grammar, partial(self._keep, number), self._hand_over
            )
        except ServiceError as error:
            self._refuse(number, error)

    def _refuse(self, number: int, error: ServiceError) -> None:
        self._refused[number] = error
        self._changed.set()

    def _forget(self, number: int) -> None:
        if (compiling := self._compiling.get(number)) is not None:
            compiling.cancel()
        self._unsent.pop(number, None)
        sequence = self._sequences.pop(number, None)
        if sequence is not None:
            self._cancel(sequence)

    def _keep(self, number: int, event: TokensGained) -> None:
        """Keep what a step gained for a sequence; called on the engine's thread."""
        self._step.append((number, event))

    def _hand_over(self) -> None:
        """Bring what a step gained to the event loop; called on the engine's thread."""
        step, self._step = self._step, []
        self._loop.call_soon_threadsafe(self._take_over, step)

    def _take_over(self, step: list[tuple[int, TokensGained]]) -> None:
        for number, event in step:
            # A sequence that was cancelled meanwhile is not there.
            if number in self._sequences:
                self._unsent.setdefault(number, deque()).append(event)
                if event.awaiting_parser:
                    self._compile(number, self._compile_alone(number))
        self._changed.set()

    def _response(self) -> pb.DecodeResponse:
        """Return a message of results that have not been sent, as many as it may hold."""
        response = pb.DecodeResponse()
        for number, error in self._refused.items():
            response.sequences.add(sequence_id=number).error.Pack(error.to_proto())
        self._refused.clear()
        self._room_made.set()
        room = MAX_MESSAGE_TOKENS
        while self._unsent and room > 0:
            number, events = next(iter(self._unsent.items()))
            message = response.sequences.add(sequence_id=number)
            while events and room > 0:
                event = events.popleft()
                room -= len(event.token_ids)
                self._add(message, number, event)
            if not events:
                del self._unsent[number]
        return response

    def _add(self, message: pb.SequenceTokens, number: int, event: TokensGained) -> None:
        if event.failure is not None:
            message.error.Pack(engine_stopped(event.failure).to_proto())
        elif event.finish_reason is FinishReason.GRAMMAR_FAILED:
            message.error.Pack(_GRAMMAR_FAILED.to_proto())
        else:
            add_step(message, event, self._sequences[number])
        if event.failure is not None or event.finish_reason is not None:
            del self._sequences[number]


def engine_stopped(message: str) -> ServiceError:
    """Return the error for a sequence whose engine does not run any more."""
    return ServiceError(grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED", message)
