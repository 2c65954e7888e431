"""Timed answers on disk, so that an interrupted comparison goes on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft_bench.common.line_store import LineStore
from blockdraft_bench.peers.answers import TimedAnswer, Variant


@dataclass(frozen=True, slots=True)
class PeerKey:
    """Which answer.

    Attributes:
        dataset: Name of the dataset.
        sample_id: Id of the sample.
        prompt: Digest of the prompt's tokens, so that a changed prompt is a new one.
        variant: Who decoded it, and how.
    """

    dataset: str
    sample_id: str
    prompt: str
    variant: Variant


class PeerStore(LineStore[PeerKey, TimedAnswer]):
    """The answers so far under one choice of settings."""

    def _to_fields(self, key: PeerKey, item: TimedAnswer) -> dict[str, Any]:
        return {"key": asdict(key), "answer": asdict(item)}

    def _from_fields(self, fields: Mapping[str, Any]) -> tuple[PeerKey, TimedAnswer]:
        key, answer = fields["key"], fields["answer"]
        return (
            PeerKey(**{**key, "variant": Variant(**key["variant"])}),
            TimedAnswer(**{**answer, "token_ids": tuple(answer["token_ids"])}),
        )
