"""Samples decoded by every method, one method right after another."""

from dataclasses import dataclass

from blockdraft_bench.common.answers import DecodedAnswer
from blockdraft_verifier.scheduling.sequence import GenerationRequest


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Which sample.

    Attributes:
        dataset: Name of the dataset.
        sample: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        temperature: Of the target.
    """

    dataset: str
    sample: str
    prompt: str
    temperature: float


@dataclass(frozen=True, slots=True)
class SampleAnswers:
    """A sample's answers by all methods: one record, so that they stay together.

    Times are compared only between answers that were decoded one right after another. A sample that
    was interrupted between two methods has no record yet, and all of its methods are decoded again.

    Attributes:
        methods: By method, `PLAIN` among them, in the order in which they were decoded.
    """

    methods: dict[str, DecodedAnswer]


@dataclass(frozen=True, slots=True)
class DecodedSample:
    """One sample by every method.

    Attributes:
        request: What was asked of each, but for the draft length.
        answers: By method, `PLAIN` among them.
    """

    request: GenerationRequest
    answers: dict[str, DecodedAnswer]


@dataclass(frozen=True, slots=True)
class DecodedSet:
    """The samples of one dataset at one temperature, in order; at least one."""

    dataset: str
    temperature: float
    samples: tuple[DecodedSample, ...]

    def answers(self, method: str) -> list[DecodedAnswer]:
        """Return the answers of one method."""
        return [sample.answers[method] for sample in self.samples]
