"""Measuring what three processes cost: the same prompts in one process and through the service.

Only one side works at a time. The other has nothing to do: an engine without requests sleeps on
its queue. How far it slept is measured, as the processor time it used meanwhile.
"""

import asyncio
import time
from collections.abc import Sequence

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.process_time import family_cpu_seconds
from blockdraft_bench.common.run import Run
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.serve.generator import LoadRequest, Sender, closed_loop
from blockdraft_bench.serve.request_record import RequestRecord
from blockdraft_bench.serve.service import RunningService
from blockdraft_bench.serve.settings import Asked
from blockdraft_bench.serve.split import Comparison, Decoding, GroupKey
from blockdraft_drafter.app import load_method
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.event_loop import return_free_memory
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.scheduling.sequence import GenerationRequest

Requests = Sequence[GenerationRequest]


def measure_split(
    service: RunningService,
    pair: tuple[str, str, EngineSettings],
    pool: Requests,
    settings: Asked,
    store: ResultStore[GroupKey, Comparison],
    run: Run,
) -> dict[int, list[Comparison]]:
    """Compare one process with the service at each concurrency of the settings.

    `pair` is target, drafter and configuration of the one process, as the service has them.

    Raises:
        BenchError: If the service fails, or does not run the same models.
        ModelError: If target or drafter cannot be loaded.
    """
    keys = [
        GroupKey(concurrency, number)
        for concurrency in settings.split_concurrency
        for number in range(settings.split_requests(concurrency) // concurrency)
    ]
    store.announce(keys)
    missing = [key for key in keys if store.get(key) is None]
    if missing:
        loading = run.phase("loading the one process")
        decoder = load_decoder_pair(*pair)
        decoder.warm_up(loading.reach)
        # Compiling leaves much freed memory behind, as in a verifier.
        return_free_memory()
        phase = run.phase("one process and three", len(missing))
        with SplitMeasurement(decoder, service, settings.timeout_seconds) as measurement:
            measurement.warm_up(pool, settings.warm_up)
            for key in missing:
                store.add(key, measurement.compare(requests_of_group(pool, key)))
                phase.advance()
        decoder.close()
    found: dict[int, list[Comparison]] = {}
    for key in keys:
        if (comparison := store.get(key)) is not None:
            found.setdefault(key.concurrency, []).append(comparison)
    return found


def requests_of_group(pool: Requests, key: GroupKey) -> list[GenerationRequest]:
    """Return the requests of a group: the next ones of the pool, which begins again at its end."""
    start = key.number * key.concurrency
    return [pool[(start + i) % len(pool)] for i in range(key.concurrency)]


def load_decoder_pair(target: str, drafter: str, config: EngineSettings) -> InProcessDecoder:
    """Load target and drafter into this process, configured like a verifier and its drafter.

    Raises:
        ModelError: If one of them cannot be loaded.
    """
    drafting = load_method(
        DrafterSettings(
            target=target,
            drafter=drafter,
            max_sequences=config.scheduler.max_sequences,
            max_context_tokens=config.scheduler.max_context_tokens,
            dtype=config.dtype,
        )
    )
    decoder, checkpoint = load_decoder(resolve_target(target), dtype=serving_dtype(config.dtype))
    return InProcessDecoder(decoder, checkpoint, drafting, config)


class SplitMeasurement:
    """Both sides, ready to decode; a context manager."""

    def __init__(
        self, decoder: InProcessDecoder, service: RunningService, timeout_seconds: float
    ) -> None:
        """Join both sides; the one process is warmed up already.

        Raises:
            BenchError: If they do not run the same models.
        """
        model = service.model
        theirs = (model.target_fingerprint, model.drafter.fingerprint if model.drafter else None)
        ours = (decoder.target.fingerprint, decoder.drafter.fingerprint)
        if ours != theirs:
            raise BenchError(f"the service runs the models {theirs}, this process {ours}")
        self._decoder = decoder
        self._service = service
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.Runner()

    def __enter__(self) -> "SplitMeasurement":
        """Connect."""
        self._client = self._service.connection.load_client()
        return self

    def __exit__(self, *error: object) -> None:
        """Disconnect."""
        self._loop.run(self._client.close())
        self._loop.close()

    def warm_up(self, pool: Requests, count: int) -> None:
        """Decode some requests on both sides, one at a time, without counting them."""
        for number in range(count):
            group = [pool[number % len(pool)]]
            self._one_process(group)
            self._three_processes(group)

    def compare(self, group: Requests) -> Comparison:
        """Decode a group together, twice on either side: one, three, three, one process.

        Raises:
            BenchError: If the service fails.
        """
        first = self._one_process(group)
        theirs = (self._three_processes(group), self._three_processes(group))
        return Comparison((first, self._one_process(group)), theirs)

    def _one_process(self, group: Requests) -> Decoding:
        events: list[list[TokensGained]] = [[] for _ in group]
        used, started = self._service_cpu_seconds(), time.perf_counter()
        self._decoder.stream_together(group, [heard.append for heard in events])
        elapsed, used_after = time.perf_counter() - started, self._service_cpu_seconds()
        records = [record_of(request, heard) for request, heard in zip(group, events, strict=True)]
        if used is None or used_after is None:
            return Decoding.of(records, None)
        return Decoding.of(records, (used_after - used) / elapsed)

    def _three_processes(self, group: Requests) -> Decoding:
        used, started = time.process_time(), time.perf_counter()
        requests = [LoadRequest(i, request, "drafted") for i, request in enumerate(group)]
        sender = Sender(self._client, self._timeout_seconds)
        records = self._loop.run(closed_loop(requests, len(requests), sender))
        idle = (time.process_time() - used) / (time.perf_counter() - started)
        for record in records:
            if record.error is not None:
                raise BenchError(f"the service failed: {record.error}")
        return Decoding.of(records, idle)

    def _service_cpu_seconds(self) -> float | None:
        process_id = self._service.process_id
        return None if process_id is None else family_cpu_seconds(process_id)


def record_of(request: GenerationRequest, events: Sequence[TokensGained]) -> RequestRecord:
    """Return what the engine's events of one answer amount to, by the engine's clock.

    Its clock and not the listener's, which hears of a step after the next draft was asked for.
    """
    usage = events[-1].usage
    assert usage is not None
    assert usage.first_token_time is not None
    assert usage.last_token_time is not None
    tokens = tuple(token for event in events for token in event.token_ids)
    first = len(events[0].token_ids)
    return RequestRecord(
        request=0,
        sample_id=request.request_id,
        scheduled=0.0,
        sent=0.0,
        ended=usage.last_token_time,
        chunk_times=(usage.first_token_time, usage.last_token_time),
        chunk_tokens=(first, len(tokens) - first),
        token_ids=tokens,
        verification_steps=usage.verification_steps,
        verify_seconds=usage.verify_seconds,
        draft_seconds=usage.draft_seconds,
        transport_seconds=usage.transport_seconds,
    )
