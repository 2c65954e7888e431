"""Requests as a verifier makes them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.requests import data_type
from blockdraft_drafter.session import Session
from blockdraft_protos.v1 import drafter_pb2


def to_tensor(array: NDArray[Any]) -> drafter_pb2.Tensor:
    return drafter_pb2.Tensor(
        shape=array.shape, dtype=data_type(array.dtype), data=array.tobytes(order="C")
    )


class Part(NamedTuple):
    """A sequence's part of a step, and its features, which go with those of the others."""

    draft: drafter_pb2.SequenceDraft
    features: NDArray[Any]


def sequence_draft(
    sequence_id: int, start: int, features: NDArray[Any], anchor: int = 1, draft_length: int = 3
) -> Part:
    draft = drafter_pb2.SequenceDraft(
        sequence_id=sequence_id,
        context_start=start,
        feature_rows=len(features),
        anchor_token_id=anchor,
        draft_length=draft_length,
    )
    return Part(draft, features)


def draft_request(
    step_id: int, parts: Sequence[Part] = (), released: Sequence[int] = ()
) -> drafter_pb2.DraftRequest:
    features = np.concatenate([part.features for part in parts]) if parts else None
    return drafter_pb2.DraftRequest(
        step_id=step_id,
        sequences=[part.draft for part in parts],
        released_sequence_ids=released,
        features=None if features is None else to_tensor(features),
    )


def whole_features(rows: int, width: int = 3, seed: int = 0) -> NDArray[np.float32]:
    """Features that are small whole numbers, so that digests are exact."""
    values = np.random.default_rng(seed).integers(0, 50, (rows, width))
    return values.astype(np.float32)


def context_lengths(session: Session) -> dict[int, int]:
    """Committed positions of every sequence that has a draft KV cache."""
    state: Any = session.state()
    return {each["sequence"]: each["tokens"] for each in state["draft_caches"]}
