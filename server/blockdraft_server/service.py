"""The public servicer: proto in, proto out, everything between is elsewhere."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import grpc

from blockdraft_protos.v1 import inference_pb2, inference_pb2_grpc
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.status import ServiceError, stream_errors, unary_errors
from blockdraft_server.access.admission import Admission, verifier_unavailable
from blockdraft_server.access.auth import ApiKeys, authorization_of
from blockdraft_server.access.tenants import Tenant
from blockdraft_server.answer.generation import Chunk, generate
from blockdraft_server.metrics import ServerMetrics
from blockdraft_server.prompts import check_prompt, prompt_token_ids
from blockdraft_server.request import (
    GenerationRequest,
    ModelLimits,
    check_length,
    check_model,
    check_request,
    check_token_ids,
    generation_spec,
)
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.routing.replay import Replay
from blockdraft_server.routing.router import TokenRouter, deadline_exceeded
from blockdraft_server.sizes import MAX_LISTED_TOKENS, check_size, prompt_too_long
from blockdraft_server.tokenizer import Tokenizer
from blockdraft_server.traces import Traces

SERVICE = "blockdraft.v1.InferenceService"

Context = grpc.aio.ServicerContext[Any, Any]


# Listing fewer tokens takes less time than handing them to a thread.
_INLINE_TOKENS = 4096


class Tokenizing(NamedTuple):
    """What long texts need.

    Attributes:
        admission: Bounds the calls of `Tokenize`.
        threads: Where long texts are tokenized.
    """

    admission: Admission
    threads: Executor


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Serves the public API; `open` must follow once the tokenizer is loaded."""

    def __init__(
        self,
        settings: ServerSettings,
        pool: VerifierPool,
        router: TokenRouter,
        tokenizing: Tokenizing,
        api_keys: ApiKeys,
        admission: Admission,
        metrics: ServerMetrics,
        traces: Traces,
        version: str,
    ) -> None:
        """Serve what `pool` holds under the name and limits of `settings`."""
        self._tokenizer: Tokenizer | None = None
        self._longest_token = 1
        self._tokenizing = tokenizing
        self._api_keys = api_keys
        self._settings = settings
        self._pool = pool
        self._router = router
        self._admission = admission
        self._metrics = metrics
        self._traces = traces
        self._version = version

    def open(self, tokenizer: Tokenizer, longest_token: int) -> None:
        """Serve from now on, with a tokenizer whose longest token has so many bytes."""
        self._tokenizer = tokenizer
        self._longest_token = longest_token

    def check_size(self, method: str, data: bytes) -> None:
        """Refuse an encoded request that is too large to be decoded; see `sizes.check_size`."""
        limits = self._pool.limits if self._tokenizer is not None else None
        most = self._settings.limits.max_prompt_bytes
        check_size(method, data, most, limits, self._longest_token)

    @unary_errors
    async def Generate(  # noqa: N802  # the method's name in the proto
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> inference_pb2.GenerateResponse:
        """Generate a whole answer; see inference.proto."""
        request_id = uuid.uuid4().hex
        response = inference_pb2.GenerateResponse(
            request_id=request_id, model=self._settings.served_name
        )
        texts = []
        async with contextlib.aclosing(self._answer(request, context, request_id)) as chunks:
            async for chunk in chunks:
                texts.append(chunk.text)
                response.token_ids.extend(chunk.token_ids)
                response.log_probs.extend(chunk.log_probs)
                if chunk.finish_reason is not None:
                    response.finish_reason = chunk.finish_reason
                if chunk.usage is not None:
                    response.usage.CopyFrom(chunk.usage)
        response.text = "".join(texts)
        return response

    @stream_errors
    async def StreamGenerate(  # noqa: N802
        self, request: inference_pb2.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.StreamGenerateResponse]:
        """Stream an answer; see inference.proto."""
        request_id = uuid.uuid4().hex
        first: dict[str, str] = {"request_id": request_id, "model": self._settings.served_name}
        async with contextlib.aclosing(self._answer(request, context, request_id)) as chunks:
            async for chunk in chunks:
                yield inference_pb2.StreamGenerateResponse(
                    **first,
                    text=chunk.text,
                    token_ids=chunk.token_ids,
                    log_probs=chunk.log_probs,
                    finish_reason=chunk.finish_reason or inference_pb2.FINISH_REASON_UNSPECIFIED,
                    usage=chunk.usage,
                )
                first = {}

    @unary_errors
    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """List the tokens of a prompt; see inference.proto."""
        check_model(request.model, self._settings.served_name)
        tokenizer = self._loaded_tokenizer()
        limits = self._pool.limits or ModelLimits(tokenizer.vocab_size, 0)
        text_bytes = check_prompt(request.prompt, self._settings.limits.max_prompt_bytes)
        with self._tokenizing.admission.admit(self._tenant(context)):
            threads = self._tokenizing.threads
            token_ids = await prompt_token_ids(request.prompt, text_bytes, tokenizer, threads)
            if len(token_ids) > MAX_LISTED_TOKENS:
                raise prompt_too_long(len(token_ids), MAX_LISTED_TOKENS)
            check_token_ids("prompt.token_ids.values", token_ids, limits)
            if len(token_ids) <= _INLINE_TOKENS:
                return _listing(token_ids, tokenizer)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads, _listing, token_ids, tokenizer)

    @unary_errors
    async def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        """Describe what is served; see inference.proto."""
        check_model(request.model, self._settings.served_name)
        description = self._pool.description
        if description is None:
            raise verifier_unavailable("no verifier was ready yet")
        drafter = description.drafter
        return inference_pb2.GetModelResponse(
            model=self._settings.served_name,
            target_fingerprint=description.target_fingerprint,
            vocabulary_size=description.vocabulary_size,
            max_context_tokens=description.max_context_tokens,
            drafter=inference_pb2.DraftModel(
                method=drafter.method,
                block_size=drafter.block_size,
                fingerprint=drafter.fingerprint,
                trained=drafter.trained,
                version=drafter.version,
            )
            if description.HasField("drafter")
            else None,
            version=self._version,
            exactness=inference_pb2.ModelExactness(
                exact=description.exactness.exact,
                dtype=description.exactness.dtype,
                classes=[" ".join(found.steps) for found in description.exactness.classes],
                padded=description.exactness.padded,
            )
            if description.HasField("exactness")
            else None,
        )

    async def _answer(
        self, request: GenerationRequest, context: Context, request_id: str
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an answer: the life of a request from its checks to its end."""
        remaining = context.time_remaining()
        if remaining is None:
            remaining = self._settings.limits.default_timeout_seconds
        deadline = time.monotonic() + remaining
        tenant = self._tenant(context)
        name, metadata = self._settings.served_name, tuple(context.invocation_metadata() or ())
        with (
            self._metrics.request(tenant.name, request_id) as timer,
            self._traces.request(request_id, name, metadata) as trace,
            _errors_name(request_id),
        ):
            check_model(request.model, self._settings.served_name)
            check_request(request)
            text_bytes = check_prompt(request.prompt, self._settings.limits.max_prompt_bytes)
            background = tenant.background or request.priority == inference_pb2.PRIORITY_BACKGROUND
            with self._admission.admit(tenant, background=background) as place:
                tokenizer = self._loaded_tokenizer()
                limits = self._limits()
                check_length(len(request.prompt.token_ids.values), limits)
                threads = self._tokenizing.threads
                encoding = prompt_token_ids(request.prompt, text_bytes, tokenizer, threads)
                try:
                    token_ids = await asyncio.wait_for(encoding, remaining)
                except TimeoutError:
                    raise deadline_exceeded() from None
                # They may have changed meanwhile.
                limits = self._limits()
                spec = generation_spec(request, token_ids, limits, tokenizer.eos_token_ids)
                place.take_tokens(len(token_ids) + spec.max_output_tokens)
                timer.prompt(len(token_ids))
                message = spec.to_proto(request_id)
                message.cache_salt = tenant.salt
                message.background = background
                message.recordable &= tenant.recordable
                replay = Replay(message, self._settings.limits.max_replays)
                chunks = generate(spec, replay, self._router, tokenizer.token_bytes, deadline)
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        timer.tokens(len(chunk.token_ids))
                        if chunk.finish_reason is not None:
                            timer.finished(chunk.finish_reason)
                        if chunk.usage is not None:
                            trace.finished(chunk.usage)
                        yield chunk

    def _tenant(self, context: Context) -> Tenant:
        return self._api_keys.tenant(authorization_of(context.invocation_metadata()))

    def _limits(self) -> ModelLimits:
        limits = self._pool.limits
        if limits is None:
            raise verifier_unavailable("no verifier is ready")
        return limits

    def _loaded_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "LOADING",
                "the tokenizer is being loaded",
                retry_after_seconds=1.0,
            )
        return self._tokenizer


def _listing(token_ids: Sequence[int], tokenizer: Tokenizer) -> inference_pb2.TokenizeResponse:
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
