"""The public servicer: proto in, proto out; the logic is in other modules."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc

from blockdraft_models.tokenizer.text_decoder import StandInDecoder, TextDecoder
from blockdraft_protos.v1 import inference_pb2, inference_pb2_grpc
from blockdraft_runtime.event_loop import aside
from blockdraft_runtime.field_checks import check_token_ids
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.status import ServiceError, unary_errors
from blockdraft_server.admission import Admission, loading
from blockdraft_server.completion import generate, writing
from blockdraft_server.keys import ApiKeys, Metadata
from blockdraft_server.metrics import ServerMetrics
from blockdraft_server.model_details import model_details
from blockdraft_server.prompts import TOKENIZERS, check_prompt, prompt_token_ids
from blockdraft_server.request import (
    InferenceRequest,
    ModelLimits,
    ServedModel,
    check_request,
    prompt_too_long,
)
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.routing.replay import Replay
from blockdraft_server.routing.router import TokenRouter, deadline_exceeded
from blockdraft_server.shared_request import SharedRequest
from blockdraft_server.sizes import MAX_LISTED_TOKENS, check_size, check_tokenized_size
from blockdraft_server.traces import Traces

if TYPE_CHECKING:
    from blockdraft_models.tokenizer.tokenizer import Tokenizer

SERVICE = "blockdraft.v1.InferenceService"
_NONE: Mapping[str, str] = MappingProxyType({})

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Serves the public API; `open` must follow once the tokenizer is loaded."""

    def __init__(
        self,
        settings: ServerSettings,
        pool: VerifierPool,
        api_keys: ApiKeys,
        metrics: ServerMetrics,
        traces: Traces,
    ) -> None:
        """Serve the pool's verifiers under the name and limits of `settings`."""
        self._settings = settings
        self._model = ServedModel(settings.served_name, pool.adapters)
        self._limits = settings.limits
        self._pool = pool
        self._api_keys = api_keys
        self._metrics = metrics
        self._traces = traces
        self._router = TokenRouter(pool, settings.limits.recovery_seconds, metrics.replays.inc)
        waiting = settings.limits.max_waiting
        self._generating = Admission(
            waiting,
            lambda: pool.capacity,
            settings.servers,
            lambda: api_keys.shared,
            pool.unavailable,
        )
        self._tokenizing = Admission(waiting, lambda: TOKENIZERS, shared=lambda: api_keys.shared)
        self._threads = ThreadPoolExecutor(TOKENIZERS, "tokenize")
        self._tokenizer: Tokenizer | None = None
        self._longest_token = 1

    def open(self, tokenizer: "Tokenizer", longest_token: int) -> None:
        """Serve from now on; `longest_token` is the number of bytes of the longest token."""
        self._tokenizer = tokenizer
        self._longest_token = longest_token

    def drain(self) -> None:
        """Refuse new requests; those admitted go on."""
        self._generating.drain()
        self._tokenizing.drain()

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def state(self) -> dict[str, object]:
        """Return the numbers of requests held to generate and to tokenize."""
        return {"admitted": self._generating.admitted, "tokenizing": self._tokenizing.admitted}

    def check_size(self, method: str, data: bytes) -> None:
        """Refuse an encoded request that is too large to be decoded; see `sizes.check_size`."""
        limits = self._pool.limits if self._tokenizer is not None else None
        check_size(method, data, self._limits.max_prompt_bytes, limits, self._longest_token)

    def check_tokenized_size(self, method: str, data: bytes) -> None:
        """Refuse an encoded request of vLLM's protocol that is too large to be decoded."""
        check_tokenized_size(data, self._limits.max_prompt_bytes, self._pool.limits)

    @unary_errors
    async def Generate(  # noqa: N802  # the method's name in the proto
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> inference_pb2.GenerateResponse:
        """Generate a whole completion; see inference.proto."""
        response, texts = inference_pb2.StreamGenerateResponse(), []
        async with contextlib.aclosing(self._messages_of(request, context)) as messages:
            async for message in messages:
                texts.append(message.text)
                response.MergeFrom(message)
        response.text = "".join(texts)
        # Its fields are those of the stream's messages.
        fields = {field.name: value for field, value in response.ListFields()}
        return inference_pb2.GenerateResponse(**fields)

    @unary_errors
    async def StreamGenerate(  # type: ignore[override]  # noqa: N802  # writes its responses itself
        self, request: inference_pb2.StreamGenerateRequest, context: Context
    ) -> None:
        """Stream a completion; see inference.proto."""
        async with (
            writing(context, self._limits.default_timeout_seconds),
            contextlib.aclosing(self._messages_of(request, context)) as messages,
        ):
            async for message in messages:
                await context.write(message)

    @unary_errors
    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """List the tokens of a prompt; see inference.proto."""
        self._model.adapter(request.model)
        return await self.tokens(request.prompt, context.invocation_metadata())

    async def tokens(
        self, prompt: inference_pb2.Prompt, metadata: Metadata | None
    ) -> inference_pb2.TokenizeResponse:
        """Return the tokens of a prompt, with a place in the queue of those who ask for them."""
        tokenizer = self._loaded_tokenizer()
        limits = self._pool.limits or ModelLimits(tokenizer.vocab_size, 0)
        text_bytes = check_prompt(prompt, self._limits.max_prompt_bytes)
        with self._tokenizing.admit(self._api_keys.tenant(metadata)):
            token_ids = await aside(self._threads, text_bytes, prompt_token_ids, prompt, tokenizer)
            if len(token_ids) > MAX_LISTED_TOKENS:
                raise prompt_too_long(len(token_ids), MAX_LISTED_TOKENS)
            check_token_ids("prompt.token_ids.values", token_ids, limits.vocabulary_size)
            return await aside(self._threads, len(token_ids), _listing, token_ids, tokenizer)

    @unary_errors
    async def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        """Describe what is served; see inference.proto."""
        self._model.adapter(request.model)
        description = self._pool.description
        if description is None:
            raise self._pool.unavailable()
        return model_details(self._settings.served_name, description)

    def completions(
        self,
        requests: Sequence[inference_pb2.StreamGenerateRequest],
        count: int,
        metadata: Metadata | None,
        remaining: float | None,
        stand_ins: Mapping[str, str] = _NONE,
    ) -> list[AsyncGenerator[inference_pb2.StreamGenerateResponse, None]]:
        """Return the `messages` of `count` completions of each request, with different seeds.

        The requests have passed `check_request`. More than are ever held at once are refused. In
        the text, the characters of `stand_ins` replace control tokens, given by their spelling.
        """
        self._generating.check_count(len(requests) * count)
        return [
            self.messages(request, metadata, remaining, shared, index, stand_ins)
            for request in requests
            for shared in [self._shared(request)]
            for index in range(count)
        ]

    async def messages(
        self,
        request: InferenceRequest,
        metadata: Metadata | None,
        remaining: float | None,
        shared: SharedRequest | None = None,
        index: int = 0,
        stand_ins: Mapping[str, str] = _NONE,
    ) -> AsyncGenerator[inference_pb2.StreamGenerateResponse, None]:
        """Yield the messages of a completion: the life of a request from its checks to its end.

        The caller waits for `remaining` seconds; None if it sets no deadline. This is completion
        number `index` of a `shared` request; None if it is the only one.
        """
        if remaining is None:
            remaining = self._limits.default_timeout_seconds
        deadline = time.monotonic() + remaining
        tenant, request_id = self._api_keys.tenant(metadata), uuid.uuid4().hex
        name = self._settings.served_name
        with (
            self._metrics.request(tenant.name, request_id) as timer,
            self._traces.request(request_id, name, metadata or ()) as trace_end,
            _errors_name(request_id),
        ):
            adapter = self._model.adapter(request.model)
            if shared is None:
                check_request(request)
                shared = self._shared(request)
            shared.check()
            background = tenant.background or request.priority == inference_pb2.PRIORITY_BACKGROUND
            with self._generating.admit(tenant, background=background) as take_tokens:
                tokenizer = self._loaded_tokenizer()
                try:
                    # Not `wait_for`, which until Python 3.12 may swallow a cancellation.
                    async with asyncio.timeout(remaining):
                        sequence = await shared.sequence(index, tokenizer)
                except TimeoutError:
                    raise deadline_exceeded() from None
                prompt_tokens = len(sequence.prompt_token_ids)
                take_tokens(prompt_tokens + sequence.sampling.max_output_tokens)
                timer.prompt(prompt_tokens)
                sequence.request_id = request_id
                sequence.cache_salt, sequence.adapter = tenant.salt, adapter
                sequence.background = background
                sequence.recordable &= tenant.recordable
                replay = Replay(sequence, self._limits.max_replays)
                stops = request.sampling.stop_sequences
                decoder: TextDecoder = tokenizer.text_decoder(continues=_continues(request))
                if stand_ins:
                    control = tokenizer.control_tokens
                    characters = {control[name]: stand_ins[name] for name in stand_ins}
                    decoder = StandInDecoder(decoder, characters)
                messages = generate(
                    replay, stops, self._router, tokenizer.token_bytes, decoder, deadline
                )
                first = True
                async with contextlib.aclosing(messages):
                    async for message in messages:
                        if first:
                            message.request_id, first = request_id, False
                            message.model = request.model or name
                        timer.tokens(len(message.token_ids))
                        if message.finish_reason:
                            timer.finished(message.finish_reason)
                            trace_end(message.usage)
                        yield message

    def _shared(self, request: InferenceRequest) -> SharedRequest:
        max_bytes, pool = self._limits.max_prompt_bytes, self._pool
        return SharedRequest(request, max_bytes, lambda: pool.ready_limits, self._threads)

    def _messages_of(
        self, request: InferenceRequest, context: Context
    ) -> AsyncGenerator[inference_pb2.StreamGenerateResponse, None]:
        return self.messages(request, context.invocation_metadata(), context.time_remaining())

    def _loaded_tokenizer(self) -> "Tokenizer":
        if self._tokenizer is None:
            raise loading("the tokenizer is being loaded")
        return self._tokenizer


def _continues(request: InferenceRequest) -> bool:
    """Return whether a completion keeps a space at its beginning, as text after other text does.

    A constrained completion keeps it too: its text is exactly what the constraint allows.
    """
    return not request.prompt.HasField("conversation") or request.sampling.HasField("constraint")


def _listing(token_ids: Sequence[int], tokenizer: "Tokenizer") -> inference_pb2.TokenizeResponse:
    return inference_pb2.TokenizeResponse(
        token_ids=token_ids, tokens=map(tokenizer.token_bytes, token_ids)
    )


@contextlib.contextmanager
def _errors_name(request_id: str) -> Iterator[None]:
    """Put the request's identifier into the errors that end it."""
    try:
        yield
    except ServiceError as error:
        error.metadata["request_id"] = request_id
        raise
