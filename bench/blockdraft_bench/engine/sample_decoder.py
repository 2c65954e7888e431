"""One sample by several decoders in turn, timed, without a compilation in between."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.samples import Keep, Sample, in_turn
from blockdraft_verifier.engine.guards import RecompilationGuard
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Of the untimed answer that each gives first: allocations and compilation are not its speed.
WARM_UP_TOKENS = 16

DecodeOne = Callable[[GenerationRequest], Answer]


class SampleDecoder:
    """Decodes samples by each of a group of decoders, one answer at a time; a `Decode`."""

    def __init__(self, decoders: Mapping[str, DecodeOne]) -> None:
        """Use decoders that have compiled what they need; each computes the whole prompt."""
        self._decoders = decoders
        self._cold = set(decoders)
        self.recompilations = 0
        self._guard = RecompilationGuard(self._count_recompilation)

    def __call__(self, group: tuple[str, ...], samples: Sequence[Sample], keep: Keep) -> None:
        """Answer each sample by every decoder of a group, one right after another.

        The sample's number decides which is first.

        Raises:
            BenchError: If something was compiled meanwhile, so that the times are not those of
                decoding, or drafter and target got out of step.
        """
        for index, sample in enumerate(samples):
            names = in_turn(group, sample.number)
            request = sample.request
            short = replace(
                request, max_output_tokens=min(WARM_UP_TOKENS, request.max_output_tokens)
            )
            for name in [name for name in names if name in self._cold]:
                self._decoders[name](short)
                self._cold.remove(name)
            self._guard.arm()
            try:
                answers = {name: self._decoders[name](request) for name in names}
            finally:
                self._guard.disarm()
            if self.recompilations:
                raise BenchError(f"{self.recompilations} steps were compiled while being timed")
            keep(index, answers)

    def _count_recompilation(self) -> None:
        self.recompilations += 1
