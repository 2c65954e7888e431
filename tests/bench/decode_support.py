"""A tiny target with scripted drafters, as methods to compare; and answers made by hand."""

from dataclasses import replace

from tests.bench.support import DRAFT_LENGTH, ENGINE, MAX_TOKENS, ScriptedPair, scripted_pair

from blockdraft_bench.common.answers import PLAIN, Answer, DecodedAnswer
from blockdraft_bench.decode.samples import DecodedSample, DecodedSet
from blockdraft_bench.decode.setup import DecodeSettings
from blockdraft_bench.engine.sample_decoder import SampleDecoder
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
SETTINGS = DecodeSettings(MAX_TOKENS, LENGTHS, "fixed", frozenset(), seed=7)


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
        return SampleDecoder({m: self.pair(m).decoder for m in LENGTHS}, LENGTHS)


def decoded_answer(
    ttft: float,
    decode: float,
    tokens: tuple[int, ...],
    steps: tuple[tuple[int, int], ...],
) -> DecodedAnswer:
    return DecodedAnswer(Answer(tokens, steps, False), ttft, decode)


def decoded_set(*samples: dict[str, DecodedAnswer], temperature: float = 0.0) -> DecodedSet:
    return DecodedSet(
        "hand",
        temperature,
        tuple(
            DecodedSample(GenerationRequest(f"s{index}", (1, 2)), answers)
            for index, answers in enumerate(samples)
        ),
    )
