"""Callers that stream answers through the SDK, and what they see."""

import asyncio
import itertools
import random
import time
from dataclasses import dataclass

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.process_time import family_cpu_seconds
from blockdraft_bench.door.processes import PROMPT_TOKENS
from blockdraft_bench.engine.instant_drafter import VOCAB_SIZE
from blockdraft_client import AsyncClient, SamplingParams, SpeculationParams


@dataclass(frozen=True, slots=True)
class Point:
    """What tells points apart.

    Attributes:
        streams: Answers that are read at once.
        step_tokens: Tokens that a step gains for each.
    """

    streams: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round of a point showed.

    Attributes:
        seconds: From the first request to the last end.
        tokens: Of all answers.
        messages: In which they came.
        gaps: Seconds between neighbouring messages of a stream, of all streams.
        cpu_seconds: Processor time of each process, by name.
    """

    seconds: float
    tokens: int
    messages: int
    gaps: tuple[float, ...]
    cpu_seconds: dict[str, float]


class Callers:
    """Reads answers from a server."""

    def __init__(self, client: AsyncClient, tokens: int, processes: dict[str, int]) -> None:
        """Call through a client.

        Args:
            client: Leads to the server.
            tokens: Of each answer.
            processes: Numbers of the processes whose time counts, by name.
        """
        self._client = client
        self._tokens = tokens
        self._processes = processes
        self._random = random.Random(0)

    async def read(self, point: Point) -> Reading:
        """Stream answers to their ends.

        Raises:
            BenchError: If one has not as many tokens as were asked for.
            BlockdraftError: If a call fails.
        """
        used, started = self._used(), time.perf_counter()
        arrivals = await asyncio.gather(
            *(self._stream(point.step_tokens) for _ in range(point.streams))
        )
        seconds = time.perf_counter() - started
        return Reading(
            seconds,
            point.streams * self._tokens,
            sum(map(len, arrivals)),
            tuple(
                later - earlier
                for times in arrivals
                for earlier, later in itertools.pairwise(times)
            ),
            {name: after - used[name] for name, after in self._used().items()},
        )

    async def _stream(self, step_tokens: int) -> list[float]:
        # No two alike, so that none is in the prefix cache.
        prompt = self._random.choices(range(VOCAB_SIZE), k=PROMPT_TOKENS)
        sampling = SamplingParams(max_output_tokens=self._tokens, ignore_eos=True)
        speculation = SpeculationParams(max_draft_tokens=step_tokens - 1)
        times, count = [], 0
        async for chunk in self._client.stream(prompt, sampling=sampling, speculation=speculation):
            times.append(time.perf_counter())
            count += len(chunk.token_ids)
        if count != self._tokens:
            raise BenchError(f"an answer has {count} tokens, not {self._tokens}")
        return times

    def _used(self) -> dict[str, float]:
        used = {name: family_cpu_seconds(number) for name, number in self._processes.items()}
        known = {name: seconds for name, seconds in used.items() if seconds is not None}
        return {**known, "client": time.process_time()}
