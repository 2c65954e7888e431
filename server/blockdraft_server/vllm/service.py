"""The servicer of vLLM's engine protocol, a second face of `InferenceService`."""

import asyncio
import contextlib
import datetime
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.vllm import common_pb2, vllm_engine_pb2_grpc
from blockdraft_protos.vllm import vllm_engine_pb2 as pb
from blockdraft_runtime import version
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.status import stream_errors, unary_errors
from blockdraft_server.completion import Complete, merged, writing
from blockdraft_server.keys import ApiKeys
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.vllm.mapping import aborted, chunk_of, complete_of, request_of
from blockdraft_server.vllm.tokenizer_archive import TokenizerArchive

SERVICE = "vllm.grpc.engine.VllmEngine"
# As vLLM's own server calls itself, which gateways look for.
_SERVER_TYPE = "vllm-grpc"
_CHUNK_BYTES = 64 << 10

Context = grpc.aio.ServicerContext[Any, Any]


class VllmEngineService(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Serves gateways that speak to vLLM's workers."""

    def __init__(
        self, settings: ServerSettings, pool: VerifierPool, complete: Complete, keys: ApiKeys
    ) -> None:
        """Serve the pool's verifiers under the name in `settings`; `keys` identify callers."""
        self._model, self._target = settings.served_name, settings.target
        self._timeout_seconds = settings.limits.default_timeout_seconds
        self._pool, self._archive = pool, TokenizerArchive(settings.target)
        self._complete, self._keys = complete, keys
        # By the tenant's salt, and its name for the request.
        self._running: dict[tuple[bytes, str], list[asyncio.Task[None]]] = {}
        self._started = self._received = time.time()

    @unary_errors
    async def Generate(  # type: ignore[override]  # noqa: N802  # writes its responses itself
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        """Stream the completions of a request, or each as a whole if it does not stream."""
        self._received = time.time()
        ours, count = request_of(request)
        completions = self._complete(
            [ours], count, context.invocation_metadata(), context.time_remaining()
        )
        whole = [inference_pb2.StreamGenerateResponse() for _ in completions]
        ends: dict[int, pb.GenerateResponse] = {}
        messages = self._messages(request.request_id, completions, context)
        async with (
            writing(context, self._timeout_seconds),
            contextlib.aclosing(messages) as arrivals,
        ):
            async for index, message in arrivals:
                if message is None:
                    ends[index] = aborted(index)
                elif request.stream:
                    await context.write(chunk_of(message, index))
                    # All of it is told; the end repeats none.
                    message.ClearField("token_ids")
                    message.ClearField("log_probs")
                else:
                    whole[index].MergeFrom(message)
                    message = whole[index]
                if message is not None and message.finish_reason:
                    ends[index] = complete_of(message, index)
                if request.stream and index in ends:
                    await context.write(ends.pop(index))
            # Gateways count the completions of a request that does not stream in the order of
            # arrival.
            for _, end in sorted(ends.items()):
                await context.write(end)

    @unary_errors
    async def Abort(  # noqa: N802
        self, request: pb.AbortRequest, context: Context
    ) -> pb.AbortResponse:
        """End requests; those that are not known have ended."""
        salt = self._salt(context)
        for request_id in request.request_ids:
            for task in self._running.get((salt, request_id), ()):
                task.cancel()
        return pb.AbortResponse()

    @unary_errors
    async def HealthCheck(  # noqa: N802
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        """Say whether a verifier is healthy."""
        healthy = self._pool.capacity > 0
        return pb.HealthCheckResponse(
            healthy=healthy, message="" if healthy else "no verifier is ready"
        )

    @unary_errors
    async def GetModelInfo(  # noqa: N802
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        """Describe the target."""
        limits = self._pool.ready_limits
        tokenizer = await self._archive.described()
        return pb.GetModelInfoResponse(
            model_path=self._target,
            is_generation=True,
            max_context_length=limits.max_context_tokens,
            vocab_size=limits.vocabulary_size,
            served_model_name=self._model,
            tokenizer_path=self._target,
            model_type=tokenizer.model_type,
            architectures=tokenizer.architectures,
            eos_token_ids=tokenizer.eos_token_ids,
            pad_token_id=tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else 0,
            bos_token_id=tokenizer.bos_token_id or 0,
            max_req_input_len=limits.max_context_tokens - 1,
        )

    @unary_errors
    async def GetServerInfo(  # noqa: N802
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Describe this server."""
        return pb.GetServerInfoResponse(
            active_requests=len(self._running),
            last_receive_timestamp=self._received,
            uptime_seconds=time.time() - self._started,
            server_type=_SERVER_TYPE,
            data_parallel_size=1,
            max_num_seqs=self._pool.capacity,
        )

    @unary_errors
    async def GetLoads(  # noqa: N802
        self, request: pb.GetLoadsRequest, context: Context
    ) -> pb.GetLoadsResponse:
        """Report how busy the healthy verifiers are together."""
        load = self._pool.load
        return pb.GetLoadsResponse(
            timestamp=datetime.datetime.now(datetime.UTC).isoformat(),
            version=version(),
            dp_rank_count=1,
            loads=[
                pb.SchedulerLoad(
                    num_running_reqs=load.running_sequences,
                    num_waiting_reqs=load.waiting_sequences,
                    num_total_reqs=load.running_sequences + load.waiting_sequences,
                    token_usage=load.used_pages / (load.total_pages or 1),
                    max_running_requests=self._pool.capacity,
                )
            ],
        )

    @stream_errors
    async def GetTokenizer(  # noqa: N802
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """Stream a zip archive of the tokenizer's files."""
        data, digest = await self._archive.zipped()
        for start in range(0, len(data), _CHUNK_BYTES):
            piece = data[start : start + _CHUNK_BYTES]
            last = start + _CHUNK_BYTES >= len(data)
            yield common_pb2.GetTokenizerChunk(data=piece, sha256=digest if last else "")

    async def _messages(
        self,
        request_id: str,
        completions: list[AsyncGenerator[inference_pb2.StreamGenerateResponse, None]],
        context: Context,
    ) -> AsyncGenerator[tuple[int, inference_pb2.StreamGenerateResponse | None], None]:
        """Yield the messages of all completions as they come; None ends one that was aborted."""
        # A gateway may forget to name its request, or use a name twice: then it cannot abort it.
        name = self._salt(context), request_id or uuid.uuid4().hex
        mine: list[asyncio.Task[None]] = []

        def begun(tasks: list[asyncio.Task[None]]) -> None:
            mine.extend(tasks)
            self._running.setdefault(name, mine)

        try:
            async with contextlib.aclosing(merged(completions, begun)) as messages:
                async for arrived in messages:
                    yield arrived
        finally:
            if self._running.get(name) is mine:
                del self._running[name]

    def _salt(self, context: Context) -> bytes:
        return self._keys.tenant(context.invocation_metadata()).salt
