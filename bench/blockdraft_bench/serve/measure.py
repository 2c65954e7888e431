"""Measuring a service under load: every level with every method, the methods in turn."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.run import Run
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.serve.generator import (
    Clock,
    LoadRequest,
    Send,
    Sender,
    closed_loop,
    open_loop,
    poisson_arrivals,
)
from blockdraft_bench.serve.load_level import LoadLevel, Method, RunKey
from blockdraft_bench.serve.request_record import Records, RequestRecord
from blockdraft_bench.serve.service import RunningService
from blockdraft_bench.serve.settings import Asked
from blockdraft_client.inspection import ModelInfo
from blockdraft_verifier.scheduling.sequence import GenerationRequest


def measure_loads(
    service: RunningService,
    pool: Sequence[GenerationRequest],
    settings: Asked,
    store: ResultStore[RunKey, Records],
    run: Run,
) -> dict[RunKey, Records]:
    """Make every run the store lacks; return them all, by level and method.

    Raises:
        BenchError: If requests that are not counted fail: nothing could be measured.
    """
    if not settings.loads:
        return {}
    total = sum(map(settings.requests_of, settings.loads)) * len(settings.methods)
    phase = run.phase("load", total)

    async def measure() -> None:
        async with service.connection.load_client() as client:
            sender = Sender(client, settings.timeout_seconds)
            pressed = LoadMeasurement(sender, service.model, pool, settings, phase.advance)
            await pressed.measure(store)

    asyncio.run(measure())
    keys = [
        RunKey(level, method, settings.requests_of(level))
        for level in settings.loads
        for method in settings.methods
    ]
    return {key: records for key in keys if (records := store.get(key)) is not None}


class LoadMeasurement:
    """Runs of load on one service."""

    def __init__(
        self,
        sender: Sender,
        model: ModelInfo,
        pool: Sequence[GenerationRequest],
        settings: Asked,
        on_request: Callable[[], None],
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            sender: Sends to the service.
            model: What it serves.
            pool: What to ask; request j of a run is number j modulo the pool.
            settings: How hard, how often.
            on_request: Called for every counted request that ended.
        """
        self._sender = sender
        self._model = model
        self._pool = pool
        self._settings = settings
        self._on_request = on_request
        self._rng = np.random.default_rng(settings.seed)
        self._warm = False

    async def measure(self, store: ResultStore[RunKey, Records]) -> None:
        """Make every run the store lacks.

        At each level one method follows the other, and which comes first alternates, so that
        whatever else the machine does is spread over both.

        Raises:
            BenchError: If requests that are not counted fail: nothing could be measured.
        """
        settings = self._settings
        for index, level in enumerate(settings.loads):
            for method in settings.methods if index % 2 == 0 else reversed(settings.methods):
                key = RunKey(level, method, settings.requests_of(level))
                if store.get(key) is None:
                    store.add(key, await self._run(key))
                else:
                    for _ in range(key.requests):
                        self._on_request()

    async def _run(self, key: RunKey) -> Records:
        if not self._warm:
            for method in self._settings.methods:
                await self._uncounted(self._requests(self._settings.warm_up, method))
            self._warm = True
        await self._flush()
        requests = self._requests(key.requests, key.method)
        return Records(tuple(await self._press(key.level, requests, self._counting)))

    def _requests(self, count: int, method: Method) -> list[LoadRequest]:
        return [
            LoadRequest(number, self._pool[number % len(self._pool)], method == "drafted")
            for number in range(count)
        ]

    async def _press(
        self, level: LoadLevel, requests: Sequence[LoadRequest], send: Send
    ) -> list[RequestRecord]:
        if level.mode == "closed":
            return await closed_loop(requests, int(level.value), send)
        arrivals = poisson_arrivals(level.value, len(requests), self._settings.seed)
        return await open_loop(requests, arrivals, send)

    async def _counting(self, request: LoadRequest, due: float, clock: Clock) -> RequestRecord:
        record = await self._sender(request, due, clock)
        self._on_request()
        return record

    async def _flush(self) -> None:
        """Fill the prefix cache with prompts nobody asks for again.

        Both methods send the same prompts; the second would find them computed.
        """
        left = self._settings.flush_tokens or 0
        fillers: list[LoadRequest] = []
        # Room for the one token that each of them has to generate.
        longest = self._model.max_context_tokens - 1
        while left > 0:
            length = min(left, longest)
            ids = self._rng.integers(self._model.vocabulary_size, size=length)
            filler = GenerationRequest("flush", tuple(map(int, ids)), max_output_tokens=1)
            fillers.append(LoadRequest(len(fillers), filler, drafted=False, ignore_eos=True))
            left -= length
        await self._uncounted(fillers)

    async def _uncounted(self, requests: Sequence[LoadRequest]) -> None:
        for record in await closed_loop(requests, 1, self._sender):
            if record.error is not None:
                raise BenchError(f"the service fails before the load begins: {record.error}")
