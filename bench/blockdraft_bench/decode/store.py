"""Timed answers on disk: a sample's answers by all methods are one line, so they stay together.

Times are compared only between answers that were decoded one right after another. A sample that
was interrupted between two methods has no line yet, and all of its methods are decoded again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.line_store import LineStore
from blockdraft_bench.common.timed_answers import DecodedAnswer


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Which sample.

    Attributes:
        dataset: Name of the dataset.
        sample_id: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        temperature: Of the target.
    """

    dataset: str
    sample_id: str
    prompt: str
    temperature: float


class DecodeStore(LineStore[SampleKey, Mapping[str, DecodedAnswer]]):
    """The samples so far under one choice of settings and methods, each with all its answers."""

    def _to_fields(self, key: SampleKey, item: Mapping[str, DecodedAnswer]) -> dict[str, Any]:
        return {
            "dataset": key.dataset,
            "sample": key.sample_id,
            "prompt": key.prompt,
            "temperature": key.temperature,
            # In the order in which they were decoded.
            "methods": {
                method: {
                    "ttft_seconds": decoded.ttft_seconds,
                    "decode_seconds": decoded.decode_seconds,
                    **decoded.answer.to_fields(),
                }
                for method, decoded in item.items()
            },
        }

    def _from_fields(
        self, fields: Mapping[str, Any]
    ) -> tuple[SampleKey, Mapping[str, DecodedAnswer]]:
        key = SampleKey(
            fields["dataset"], fields["sample"], fields["prompt"], fields["temperature"]
        )
        answers = {
            method: DecodedAnswer(
                Answer.from_fields(decoded), decoded["ttft_seconds"], decoded["decode_seconds"]
            )
            for method, decoded in fields["methods"].items()
        }
        return key, answers
