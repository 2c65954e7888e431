"""An engine all of whose sequences decode, and what a step of it takes without its models."""

import random
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.instant_drafter import VOCAB_SIZE
from blockdraft_bench.engine.instant_runner import InstantRunner
from blockdraft_bench.engine.timed_link import SoleLink, TimedTransport
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest, Sequence


class SteadyEngine:
    """The verifier's engine with as many sequences as it takes, stepped one step at a time."""

    def __init__(
        self,
        runner: InstantRunner,
        settings: EngineSettings,
        transport: TimedTransport | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Join the parts; nothing is decoded yet.

        Args:
            runner: The target.
            settings: Limits; `max_sequences` of the scheduler is how many sequences decode.
            transport: To a drafter in this process; None to decode plainly.
            clock: Seconds.
        """
        self._runner = runner
        self._limits = settings.scheduler
        self._transport = transport
        self._clock = clock
        self._metrics = VerifierMetrics(CollectorRegistry())
        link = None if transport is None else SoleLink(transport)
        self._engine = Engine(runner, settings, link, VOCAB_SIZE, self._metrics)
        self._engine.warm_up()
        self._block_size = 1 if transport is None else transport.description.block_size
        self._random = random.Random(0)
        self._sequences: list[Sequence] = []
        # Touches the memory of every page once, as a verifier that has run for a while has.
        self._begin_anew(self._limits.max_context_tokens - self._block_size)

    def step(self) -> float:
        """Run one step of the engine in which every sequence verifies a whole block.

        Sequences that could come to their end in it are replaced first, which does not count.

        Returns:
            The seconds that the engine itself needed: those of the target, and of the drafter in
            this process, are left out.

        Raises:
            BenchError: If it was another step.
        """
        longest = max(len(sequence.tokens) for sequence in self._sequences)
        if longest + self._block_size >= self._limits.max_context_tokens:
            # One step or two compute such prompts of all.
            self._begin_anew(self._block_size)
        before = [len(sequence.tokens) for sequence in self._sequences]
        seconds = self._timed_step()
        wanted = len(self._sequences) * (self._block_size - 1)
        if self._runner.drafted != wanted:
            raise BenchError(f"a step verified {self._runner.drafted} drafted tokens, not {wanted}")
        if any(len(s.tokens) == old for s, old in zip(self._sequences, before, strict=True)):
            raise BenchError("a step left sequences out")
        if self._metrics.repair_count():
            raise BenchError("verifier and drafter got out of step")
        return seconds

    def close(self) -> None:
        """End the drafter's session."""
        self._engine.stop()

    def _timed_step(self) -> float:
        others = -self._runner.seconds
        if self._transport is not None:
            self._transport.take_times()
        started = self._clock()
        self._engine.step()
        elapsed = self._clock() - started
        others += self._runner.seconds
        if self._transport is not None:
            times = self._transport.take_times()
            others += times.sending + times.waiting
        return elapsed - others

    def _begin_anew(self, prompt_tokens: int) -> None:
        """Replace all sequences by new ones, and step until all of these have their first token."""
        for sequence in self._sequences:
            self._engine.cancel(sequence)
        self._sequences = [
            self._engine.submit(self._request(prompt_tokens), _hear)
            for _ in range(self._limits.max_sequences)
        ]
        # The first may come to their end while the prompts of the last are computed.
        while not all(each.decoding or each.finish_reason for each in self._sequences):
            self._engine.step()

    def _request(self, prompt_tokens: int) -> GenerationRequest:
        # No two alike, so that no page is shared.
        prompt = tuple(self._random.choices(range(VOCAB_SIZE), k=prompt_tokens))
        return GenerationRequest("", prompt, max_output_tokens=self._limits.max_context_tokens)


def _hear(event: TokensGained) -> None:
    """Do nothing with the tokens; in a verifier they go to the thread of its server."""
