"""Measuring a service under load: every load with every method, the methods in turn."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from rich.progress import Progress

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.serve.generator import (
    Clock,
    LoadRequest,
    Send,
    Sender,
    closed_loop,
    open_loop,
    poisson_arrivals,
)
from blockdraft_bench.serve.load import METHODS, Load
from blockdraft_bench.serve.request_record import RequestRecord
from blockdraft_bench.serve.service import RunningService
from blockdraft_bench.serve.settings import ServeSettings
from blockdraft_bench.serve.store import LevelStore, Records, RunKey
from blockdraft_client.inspection import ModelInfo
from blockdraft_verifier.scheduling.sequence import GenerationRequest


def measure_loads(
    service: RunningService,
    pool: Sequence[GenerationRequest],
    settings: ServeSettings,
    store: LevelStore,
    progress: Progress,
) -> dict[RunKey, Records]:
    """Make every run the store lacks; return them all, by load and method.

    Args:
        service: What is pressed.
        pool: What it is asked.
        settings: How hard, how often.
        store: What is finished.
        progress: Shows how far it is.

    Raises:
        BenchError: If requests that are not counted fail: nothing could be measured.
    """
    if not settings.loads:
        return {}
    total = sum(map(settings.requests_of, settings.loads)) * len(settings.methods)
    shown = progress.add_task("load", total=total)

    async def measure() -> dict[RunKey, Records]:
        async with service.connection.load_client() as client:
            sender = Sender(client, settings.timeout_seconds)
            measurement = LoadMeasurement(
                sender, service.model, pool, settings, lambda: progress.advance(shown)
            )
            return await measurement.measure(store)

    runs = asyncio.run(measure())
    order = {load: index for index, load in enumerate(settings.loads)}
    return dict(
        sorted(runs.items(), key=lambda run: (order[run[0].load], METHODS.index(run[0].method)))
    )


class LoadMeasurement:
    """Runs of load on one service."""

    def __init__(
        self,
        sender: Sender,
        model: ModelInfo,
        pool: Sequence[GenerationRequest],
        settings: ServeSettings,
        on_request: Callable[[], None] = lambda: None,
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

    async def measure(self, store: LevelStore) -> dict[RunKey, Records]:
        """Make every run the store lacks; return them all.

        At each load one method follows the other, and which comes first alternates, so that
        whatever else the machine does is spread over both.

        Raises:
            BenchError: If requests that are not counted fail: nothing could be measured.
        """
        settings = self._settings
        found: dict[RunKey, Records] = {}
        for index, load in enumerate(settings.loads):
            for method in settings.methods if index % 2 == 0 else reversed(settings.methods):
                key = RunKey(load, method, settings.requests_of(load))
                if store.get(key) is None:
                    store.add(key, await self._run(key))
                else:
                    for _ in range(key.requests):
                        self._on_request()
                records = store.get(key)
                assert records is not None
                found[key] = records
        return found

    async def _run(self, key: RunKey) -> Records:
        if not self._warm:
            await self._warm_up()
            self._warm = True
        await self._flush()
        requests = [
            LoadRequest(number, self._pool[number % len(self._pool)], key.method == "drafted")
            for number in range(key.requests)
        ]
        return tuple(await self._press(key.load, requests, self._counting))

    async def _press(
        self, load: Load, requests: Sequence[LoadRequest], send: Send
    ) -> list[RequestRecord]:
        if load.mode == "closed":
            return await closed_loop(requests, int(load.value), send)
        arrivals = poisson_arrivals(load.value, len(requests), self._settings.seed)
        return await open_loop(requests, arrivals, send)

    async def _counting(self, request: LoadRequest, due: float, clock: Clock) -> RequestRecord:
        record = await self._sender(request, due, clock)
        self._on_request()
        return record

    async def _warm_up(self) -> None:
        for method in self._settings.methods:
            await self._uncounted(
                [
                    LoadRequest(number, self._pool[number % len(self._pool)], method == "drafted")
                    for number in range(self._settings.warm_up)
                ]
            )

    async def _flush(self) -> None:
        """Fill the prefix cache with prompts nobody asks for again.

        Both methods send the same prompts; the second would find them computed.
        """
        left = self._settings.flush_tokens
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
