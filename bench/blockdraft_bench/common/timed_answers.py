"""Answers with how long they took, by plain decoding and by each draft method."""

from collections.abc import Mapping
from dataclasses import dataclass

from blockdraft_bench.common.answers import Answer
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class DecodedAnswer:
    """One answer, decoded alone.

    Attributes:
        answer: Its tokens and verifications.
        ttft_seconds: From the request to the first token.
        decode_seconds: From the first token to the last.
    """

    answer: Answer
    ttft_seconds: float
    decode_seconds: float

    @property
    def decoded_tokens(self) -> int:
        """Tokens that came in `decode_seconds`: all but the first."""
        return len(self.answer.token_ids) - 1

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None if there is no other."""
        return self.decode_seconds / self.decoded_tokens if self.decoded_tokens else None


@dataclass(frozen=True, slots=True)
class DecodedSample:
    """One sample by every method, decoded one right after another.

    Attributes:
        request: What was asked of each, but for the draft length.
        answers: By method, `PLAIN` among them.
    """

    request: GenerationRequest
    answers: Mapping[str, DecodedAnswer]


@dataclass(frozen=True, slots=True)
class DecodedSet:
    """The samples of one dataset at one temperature, in order; at least one."""

    dataset: str
    temperature: float
    samples: tuple[DecodedSample, ...]

    def answers(self, method: str) -> list[DecodedAnswer]:
        """Return the answers of one method."""
        return [sample.answers[method] for sample in self.samples]
