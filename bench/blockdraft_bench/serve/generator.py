"""Load on a service, through its public API: so many requests at a time, or so many a second.

Closed loop: a number of callers, each of which sends its next request when the last one ended. A
slow service gets fewer requests, so a closed loop measures its throughput, not how long users wait.

Open loop: requests are sent at times fixed beforehand, whatever became of those before. Latency
counts from the time a request was *due*, not from when the client sent it, so a stall counts for
every request that it delays (no coordinated omission).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from blockdraft_bench.serve.record import Method, RequestRecord
from blockdraft_client.aio import AsyncClient
from blockdraft_client.errors import ApiError, BlockdraftError
from blockdraft_client.params import SamplingParams, SpeculationParams
from blockdraft_client.usage import Usage
from blockdraft_verifier.scheduling.sequence import GenerationRequest


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request to send, with its place in the run.

    Its prompt is sent as token ids, and without stop tokens, which the service knows. The method
    says whether drafting, and learning from the completion, is allowed.
    """

    number: int
    request: GenerationRequest
    method: Method
    ignore_eos: bool = False

    @property
    def speculation(self) -> SpeculationParams:
        """The parameters of drafting and learning, as the public API has them."""
        return SpeculationParams(
            disabled=self.method == "plain", learning_disabled=self.method != "learning"
        )

    def sampling(self) -> SamplingParams:
        """Return the parameters of sampling, as the public API has them."""
        return SamplingParams(
            max_tokens=self.request.max_output_tokens,
            temperature=self.request.sampling.temperature,
            seed=self.request.sampling.seed,
            ignore_eos=self.ignore_eos,
        )


Clock = Callable[[], float]
Send = Callable[[LoadRequest, float, Clock], Awaitable[RequestRecord]]


def poisson_arrivals(rate: float, count: int, seed: int) -> Float[np.ndarray, " count"]:
    """Return the times at which `count` requests, at least one, are due: a Poisson process.

    Times between arrivals are exponential with mean 1 / `rate` seconds; the first is due at once.
    The same seed gives the same pattern at every rate, stretched.
    """
    between = np.random.default_rng(seed).exponential(size=count - 1)
    return np.concatenate([[0.0], np.cumsum(between)]) / rate


async def closed_loop(
    requests: Sequence[LoadRequest], concurrency: int, send: Send
) -> list[RequestRecord]:
    """Keep `concurrency` requests in flight until all are answered, sent in their order."""
    clock = _stopwatch()
    waiting = iter(requests)
    records: dict[int, RequestRecord] = {}

    async def caller() -> None:
        # Nothing is awaited between two reads of the iterator, so callers can share it.
        for request in waiting:
            records[request.number] = await send(request, clock(), clock)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(caller())
    return [records[request.number] for request in requests]


async def open_loop(
    requests: Sequence[LoadRequest], arrivals: Float[np.ndarray, " count"], send: Send
) -> list[RequestRecord]:
    """Send each request when it is due, in seconds from now."""
    clock = _stopwatch()

    async def arrive(request: LoadRequest, due: float) -> RequestRecord:
        await asyncio.sleep(due - clock())
        return await send(request, due, clock)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(arrive(request, float(due)))
            for request, due in zip(requests, arrivals, strict=True)
        ]
    return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends requests with a client, each with a deadline; a failure becomes part of the record."""

    client: AsyncClient
    timeout_seconds: float

    async def __call__(self, request: LoadRequest, scheduled: float, clock: Clock) -> RequestRecord:
        """Send a request that was due at `scheduled`, by `clock`; read the whole completion."""
        sent = clock()
        times: list[float] = []
        counts: list[int] = []
        tokens: list[int] = []
        stream = self.client.stream(
            request.request.prompt,
            sampling=request.sampling(),
            speculation=request.speculation,
            timeout=self.timeout_seconds,
        )
        error: str | None = None
        try:
            async for chunk in stream:
                if chunk.token_ids:
                    times.append(clock())
                    counts.append(len(chunk.token_ids))
                    tokens.extend(chunk.token_ids)
            if not tokens:
                error = "EmptyAnswer"
        except BlockdraftError as failure:
            # The service's name for it, or else the client's.
            error = failure.reason if isinstance(failure, ApiError) else type(failure).__name__
        usage = stream.usage or Usage()
        return RequestRecord(
            request=request.number,
            sample_id=request.request.request_id,
            scheduled=scheduled,
            sent=sent,
            ended=clock(),
            chunk_times=tuple(times),
            chunk_tokens=tuple(counts),
            token_ids=tuple(tokens),
            finish_reason=stream.finish_reason,
            error=error,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            verification_steps=usage.verification_steps,
            accepted_tokens=usage.accepted_tokens,
        )


def _stopwatch() -> Clock:
    began = time.perf_counter()
    return lambda: time.perf_counter() - began
