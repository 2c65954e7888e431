"""Measuring a service under load: every level with every method, the methods in turn."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from blockdraft_bench.serve.trainer import Trainer
from blockdraft_client.results import ModelInfo
from blockdraft_verifier.scheduling.sequence import GenerationRequest


def measure_loads(
    service: RunningService,
    pool: Sequence[GenerationRequest],
    settings: Asked,
    store: ResultStore[RunKey, Records],
    run: Run,
) -> dict[RunKey, Records]:
    """Make every run the store lacks; return them all, by level and method.

    At each level one method follows the other, and which comes first alternates; all levels are
    measured before the next round begins. So whatever else the machine does meanwhile is spread
    over methods and levels.

    Raises:
        BenchError: If requests that are not counted fail: nothing could be measured.
    """
    keys = [
        [RunKey(level, method, settings.requests_of(level), number) for method in settings.methods]
        for number in range(settings.rounds)
        for level in settings.loads
    ]
    if not keys:
        return {}
    store.announce([key for level in keys for key in level])
    phase = run.phase("load", sum(key.requests for level in keys for key in level))

    async def measure() -> None:
        async with service.connection.load_client() as client:
            measurement = _LoadMeasurement(
                sender=Sender(client, settings.timeout_seconds),
                model=service.model,
                pool=pool,
                settings=settings,
                on_request=phase.advance,
                rng=np.random.default_rng(settings.seed),
                trainer=_trainer(service, settings.methods),
            )
            for index, level in enumerate(keys):
                # An even number of levels must not begin with the same methods in every round.
                turn = index % len(settings.loads) + index // len(settings.loads)
                for key in level if turn % 2 == 0 else reversed(level):
                    if store.get(key) is None:
                        store.add(key, await measurement.run(key))
                    else:
                        for _ in range(key.requests):
                            phase.advance()

    asyncio.run(measure())
    return {key: found for level in keys for key in level if (found := store.get(key)) is not None}


def _trainer(service: RunningService, methods: Sequence[Method]) -> Trainer | None:
    if "learning" not in methods or service.process_id is None:
        return None
    return Trainer(service.process_id)


@dataclass(slots=True)
class _LoadMeasurement:
    """Runs of load on one service.

    Request j of a run in round r is number j + r * requests of the pool, modulo its size.
    """

    sender: Sender
    model: ModelInfo
    pool: Sequence[GenerationRequest]
    settings: Asked
    on_request: Callable[[], None]
    rng: np.random.Generator
    trainer: Trainer | None
    warm: bool = False

    async def run(self, key: RunKey) -> Records:
        """Make one run, after what is not counted.

        Raises:
            BenchError: If requests that are not counted fail: nothing could be measured.
        """
        if not self.warm:
            for method in self.settings.methods:
                await self._uncounted(self._requests(self.settings.warm_up, method, 0))
            self.warm = True
        await self._flush()
        requests = self._requests(key.requests, key.method, key.round * key.requests)
        if self.trainer is None:
            return Records(await self._press(key.level, requests, self._counting))
        if key.method != "learning":
            with self.trainer.standing_still():
                return Records(await self._press(key.level, requests, self._counting))
        before = self.trainer.cpu_seconds()
        records = await self._press(key.level, requests, self._counting)
        return Records(records, self.trainer.cpu_seconds() - before)

    def _requests(self, count: int, method: Method, first: int) -> list[LoadRequest]:
        return [
            LoadRequest(number, self.pool[(first + number) % len(self.pool)], method)
            for number in range(count)
        ]

    async def _press(
        self, level: LoadLevel, requests: Sequence[LoadRequest], send: Send
    ) -> tuple[RequestRecord, ...]:
        if level.mode == "closed":
            return tuple(await closed_loop(requests, int(level.value), send))
        arrivals = poisson_arrivals(level.value, len(requests), self.settings.seed)
        return tuple(await open_loop(requests, arrivals, send))

    async def _counting(self, request: LoadRequest, due: float, clock: Clock) -> RequestRecord:
        record = await self.sender(request, due, clock)
        self.on_request()
        return record

    async def _flush(self) -> None:
        """Fill the prefix cache with prompts nobody asks for again.

        All methods send the same prompts; the second would find them computed.
        """
        left = self.settings.flush_tokens or 0
        fillers: list[LoadRequest] = []
        # Room for the one token that each of them has to generate.
        longest = self.model.max_context_tokens - 1
        while left > 0:
            length = min(left, longest)
            ids = self.rng.integers(self.model.vocabulary_size, size=length)
            filler = GenerationRequest("flush", tuple(map(int, ids)), max_output_tokens=1)
            fillers.append(LoadRequest(len(fillers), filler, "plain", ignore_eos=True))
            left -= length
        await self._uncounted(fillers)

    async def _uncounted(self, requests: Sequence[LoadRequest]) -> None:
        for record in await closed_loop(requests, 1, self.sender):
            if record.error is not None:
                raise BenchError(f"the service fails before the load begins: {record.error}")
