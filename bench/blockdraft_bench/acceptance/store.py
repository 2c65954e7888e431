"""Answers on disk, so that an interrupted measurement of acceptance goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.line_store import LineStore


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """Which answer.

    Attributes:
        dataset: Name of the dataset.
        sample_id: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        temperature: Of the target.
        drafted: Whether with drafting.
    """

    dataset: str
    sample_id: str
    prompt: str
    temperature: float
    drafted: bool


class AnswerStore(LineStore[AnswerKey, Answer]):
    """The answers so far under one choice of settings."""

    def _to_fields(self, key: AnswerKey, item: Answer) -> dict[str, Any]:
        return {
            "dataset": key.dataset,
            "sample": key.sample_id,
            "prompt": key.prompt,
            "temperature": key.temperature,
            "drafted": key.drafted,
            **item.to_fields(),
        }

    def _from_fields(self, fields: Mapping[str, Any]) -> tuple[AnswerKey, Answer]:
        key = AnswerKey(
            fields["dataset"],
            fields["sample"],
            fields["prompt"],
            fields["temperature"],
            fields["drafted"],
        )
        return key, Answer.from_fields(fields)
