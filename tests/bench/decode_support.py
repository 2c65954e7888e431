"""A tiny target with scripted drafters, as methods to compare; and answers made by hand."""

from dataclasses import replace

from tests.bench.support import DRAFT_LENGTH, ENGINE, ScriptedPair, scripted_pair

from blockdraft_bench.common.answers import PLAIN, Answer
from blockdraft_bench.decode.measure import sample_decoder
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.samples import Answered
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Two methods, each with a drafter and an engine of its own, over the same weights.
METHODS = ("right", "wrong")
LENGTHS = {PLAIN: 0, **dict.fromkeys(METHODS, DRAFT_LENGTH)}
# One answer at a time, in as few shapes as that takes.
ALONE = replace(
    ENGINE,
    scheduler=SchedulerSettings(max_sequences=1, max_step_tokens=8, max_context_tokens=128),
)


class Methods:
    """The decoders of both methods and of plain decoding."""

    def __init__(self) -> None:
        self.right, self.wrong = scripted_pair(ALONE), scripted_pair(ALONE)
        self.script()

    def script(self) -> None:
        """Make one drafter right about everything and the other about nothing."""
        self.right.script(lambda offset: DRAFT_LENGTH)
        self.wrong.script(lambda offset: 0)

    def pair(self, method: str) -> ScriptedPair:
        return self.wrong if method == "wrong" else self.right

    def decoder(self) -> SampleDecoder:
        return sample_decoder({m: self.pair(m).decoder for m in LENGTHS}, LENGTHS)


def decoded_answer(
    ttft: float,
    decode: float,
    tokens: tuple[int, ...],
    steps: tuple[tuple[int, int], ...],
) -> Answer:
    return Answer(tokens, steps, False, ttft, decode)


def decoded_set(*samples: dict[str, Answer], temperature: float = 0.0) -> Answered:
    """Return samples s0, s1, ... with these answers by method."""
    requests = tuple(GenerationRequest(f"s{index}", (1, 2)) for index in range(len(samples)))
    answers = {method: [each[method] for each in samples] for method in samples[0]}
    return Answered("hand", temperature, requests, answers)
