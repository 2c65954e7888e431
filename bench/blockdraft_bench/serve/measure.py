"""Measuring a service under load: every level with every method, the methods in turn."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import jax
import numpy as np

from blockdraft_bench.errors import BenchError
from blockdraft_bench.prompts import prepare
from blockdraft_bench.result import Result, draw, number, page
from blockdraft_bench.run import Run
from blockdraft_bench.serve.generator import (
    Clock,
    LoadRequest,
    Sender,
    closed_loop,
    open_loop,
    poisson_arrivals,
)
from blockdraft_bench.serve.record import LoadLevel, Method, Records, RequestRecord, RunKey
from blockdraft_bench.serve.service import (
    Trainer,
    check_service,
    pool_of_requests,
    service_for,
)
from blockdraft_bench.serve.settings import LoadTestSettings
from blockdraft_bench.serve.summary import (
    costs_of_learning,
    learning_table,
    load_table,
    rounds_note,
    speedup_table,
    speedups,
    summaries,
    tokens_per_second,
)
from blockdraft_bench.service import RunningService
from blockdraft_bench.store import ResultStore
from blockdraft_client.cli.local_server import terminated_like_interrupted
from blockdraft_verifier.scheduling.sequence import GenerationRequest

LEVELS_FILE = "levels.jsonl"


def measure(settings: LoadTestSettings, run: Run) -> Result:
    """Press a service with prompts of the datasets, and sum up."""
    service_settings, load = settings.service, settings.load
    if service_settings.address is not None:
        # The accelerators of this machine, if any, may be the service's.
        jax.config.update("jax_platforms", "cpu")
    prepared = prepare(settings.prompts)
    pool = pool_of_requests(prepared, settings)
    with terminated_like_interrupted(), service_for(settings, run) as service:
        check_service(service, prepared.tokenizer, pool)
        model, target, drafter = service.model, service.target, service.drafter
        about = {
            "address": service_settings.address,
            "engine": asdict(settings.engine) if service_settings.address is None else None,
            "max_context_tokens": model.max_context_tokens,
            "version": model.server_version,
        }
        run.identify(
            *(about, target, drafter, settings.prompts.max_tokens, settings.temperature),
            *(settings.prompts.seed, load.warm_up, settings.flush_tokens, load.timeout_seconds),
            [(request.request_id, request.prompt) for request in pool],
        )
        runs = measure_loads(service, pool, settings, run.store(Records, LEVELS_FILE), run)
    rows, ratios = summaries(runs, settings.objectives), speedups(runs)
    learning = costs_of_learning(runs)
    address = service_settings.address
    where = "started for this run" if address is None else f"at {address}"
    policy = "unknown" if address else settings.engine.draft_policy
    caption = (
        f"Service {where}: target {target}, {drafter or 'no drafter'}, draft policy {policy}. "
        f"Completions of at most {settings.prompts.max_tokens} tokens at temperature "
        f"{settings.temperature:g}; the machine is shared by service and client where both run "
        "here."
    )
    tables = load_table(rows), speedup_table(ratios), rounds_note(ratios), learning_table(learning)
    facts = {
        "service": about,
        "target": target,
        "drafter": drafter,
        "prompts": len(pool),
        "speedups": ratios,
        "learning": learning,
    }
    figure = draw(rows, "load", "output_tokens_per_second", ["mode", "method"])
    return Result(facts, rows, page(caption, *tables), figure)


def measure_loads(
    service: RunningService,
    pool: Sequence[GenerationRequest],
    settings: LoadTestSettings,
    store: ResultStore[Records],
    run: Run,
) -> dict[RunKey, Records]:
    """Make every run the store lacks; return them all, by level and method.

    At each level one method follows the other, and which comes first alternates; all levels are
    measured before the next round begins. So whatever else the machine does meanwhile is spread
    over methods and levels.
    """
    load = settings.load
    keys = [
        [RunKey(*level, method, load.requests_of(level), number) for method in load.methods]
        for number in range(load.rounds)
        for level in load.levels
    ]
    store.announce([key for level in keys for key in level])
    phase = run.phase("load", sum(key.requests for level in keys for key in level))

    async def measure() -> None:
        async with service.connection.load_client() as client:
            measurement = _LoadMeasurement(
                sender=Sender(client, load.timeout_seconds),
                service=service,
                pool=pool,
                settings=settings,
                on_request=phase.advance,
                rng=np.random.default_rng(settings.prompts.seed),
            )
            for index, level in enumerate(keys):
                # An even number of levels must not begin with the same methods in every round.
                turn = index % len(load.levels) + index // len(load.levels)
                for key in level if turn % 2 == 0 else reversed(level):
                    if store.get(key) is None:
                        records = await measurement.run(key)
                        store.add(key, records)
                        speed = tokens_per_second(key.level, records)
                        run.note(f"{key.level}, {key.method}: {number(speed, 1)} tokens/s")
                    else:
                        for _ in range(key.requests):
                            phase.advance()

    asyncio.run(measure())
    return {
        key: records for level in keys for key in level if (records := store.get(key)) is not None
    }


@dataclass(slots=True)
class _LoadMeasurement:
    """Runs of load on one service.

    Request j of a run in round r is number j + r * requests of the pool, modulo its size.
    """

    sender: Sender
    service: RunningService
    pool: Sequence[GenerationRequest]
    settings: LoadTestSettings
    on_request: Callable[[], None]
    rng: np.random.Generator
    warm: bool = False

    async def run(self, key: RunKey) -> Records:
        """Make one run, after what is not counted; if that fails, nothing could be measured."""
        load = self.settings.load
        if not self.warm:
            for method in load.methods:
                await self._uncounted(self._requests(load.warm_up, method, 0))
            self.warm = True
        await self._flush()
        requests = self._requests(key.requests, key.method, key.round * key.requests)
        if not self.settings.learns or self.service.process_id is None:
            return Records(await self._press(key.level, requests))
        trainer = Trainer(self.service.process_id)
        if key.method != "learning":
            with trainer.standing_still():
                return Records(await self._press(key.level, requests))
        before = trainer.cpu_seconds()
        records = await self._press(key.level, requests)
        return Records(records, trainer.cpu_seconds() - before)

    def _requests(self, count: int, method: Method, first: int) -> list[LoadRequest]:
        return [
            LoadRequest(number, self.pool[(first + number) % len(self.pool)], method)
            for number in range(count)
        ]

    async def _press(
        self, level: LoadLevel, requests: Sequence[LoadRequest]
    ) -> tuple[RequestRecord, ...]:
        async def send(request: LoadRequest, due: float, clock: Clock) -> RequestRecord:
            record = await self.sender(request, due, clock)
            self.on_request()
            return record

        if level.mode == "closed":
            return tuple(await closed_loop(requests, int(level.value), send))
        arrivals = poisson_arrivals(level.value, len(requests), self.settings.prompts.seed)
        return tuple(await open_loop(requests, arrivals, send))

    async def _flush(self) -> None:
        """Fill the prefix cache with prompts that are not sent again.

        All methods send the same prompts; the second would find them computed.
        """
        model, left = self.service.model, self.settings.flush_tokens
        fillers: list[LoadRequest] = []
        # Less the one token that each of them has to generate.
        longest = model.max_context_tokens - 1
        while left > 0:
            length = min(left, longest)
            ids = self.rng.integers(model.vocabulary_size, size=length)
            filler = GenerationRequest("flush", tuple(map(int, ids)), max_output_tokens=1)
            fillers.append(LoadRequest(len(fillers), filler, "plain", ignore_eos=True))
            left -= length
        await self._uncounted(fillers)

    async def _uncounted(self, requests: Sequence[LoadRequest]) -> None:
        for record in await closed_loop(requests, 1, self.sender):
            if record.error is not None:
                raise BenchError(f"the service fails before the load begins: {record.error}")
