"""One sample by every method in turn, timed, without a compilation in between."""

import time
from collections.abc import Mapping
from dataclasses import replace

from blockdraft_bench.common.answers import Answer, DecodedAnswer
from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_verifier.device.recompilation import RecompilationGuard
from blockdraft_verifier.engine.loop import TokensGained
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest

# Of the untimed answer that each method gives first.
WARM_UP_TOKENS = 16


class SampleDecoder:
    """Decodes samples by each method, one answer at a time."""

    def __init__(
        self, decoders: Mapping[str, InProcessDecoder], draft_lengths: Mapping[str, int]
    ) -> None:
        """Use decoders that are warmed up.

        Args:
            decoders: The decoder of each method; methods may share one.
            draft_lengths: Tokens of a whole proposal of each method, 0 for plain decoding.
        """
        self._decoders = decoders
        self._draft_lengths = draft_lengths
        self._warm = False
        self.recompilations = 0
        self._guard = RecompilationGuard(self._count_recompilation)

    def decode(self, request: GenerationRequest, turn: int) -> dict[str, DecodedAnswer]:
        """Answer a request by every method, one right after another.

        Args:
            request: What to answer; every method computes the whole prompt.
            turn: Number of the sample; it decides which method is first.

        Returns:
            The answers by method, in the order in which they were decoded.

        Raises:
            BenchError: If something was compiled meanwhile, so that the times are not those of
                decoding, or drafter and target got out of step.
        """
        if not self._warm:
            short = min(WARM_UP_TOKENS, request.max_output_tokens)
            self._in_turn(replace(request, max_output_tokens=short), turn)
            self._warm = True
        self._guard.arm()
        try:
            answers = self._in_turn(request, turn)
        finally:
            self._guard.disarm()
        if self.recompilations:
            raise BenchError(f"{self.recompilations} steps were compiled while being timed")
        return answers

    def _in_turn(self, request: GenerationRequest, turn: int) -> dict[str, DecodedAnswer]:
        methods = list(self._decoders)
        first = turn % len(methods)
        return {
            method: decode_alone(
                self._decoders[method],
                replace(request, max_draft_tokens=self._draft_lengths[method]),
            )
            for method in (*methods[first:], *methods[:first])
        }

    def _count_recompilation(self) -> None:
        self.recompilations += 1


def decode_alone(decoder: InProcessDecoder, request: GenerationRequest) -> DecodedAnswer:
    """Return the answer to one request, its prompt computed in full, and its times."""
    events: list[TokensGained] = []
    started = time.perf_counter()
    decoder.stream(request, events.append)
    # By the engine's clock, which is the same: in this process an event is told only after the
    # next proposal was drafted, so the first draft would not count as time of decoding.
    usage = events[-1].usage
    assert usage is not None
    assert usage.first_token_time is not None
    assert usage.last_token_time is not None
    answer = Answer(
        token_ids=tuple(token for event in events for token in event.token_ids),
        # The first event follows the prompt: nothing was verified for it.
        steps=tuple((event.drafted, event.accepted) for event in events[1:]),
        stopped=events[-1].finish_reason is FinishReason.STOP,
    )
    return DecodedAnswer(
        answer,
        ttft_seconds=usage.first_token_time - started,
        decode_seconds=usage.last_token_time - usage.first_token_time,
    )
