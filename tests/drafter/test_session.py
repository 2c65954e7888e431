"""Single situations of the protocol, each as a verifier would meet it."""

import mmap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.drafter.fake_method import SPEC, FakeMethod, digest
from tests.drafter.requests import (
    context_lengths,
    draft_request,
    sequence_draft,
    to_tensor,
    whole_features,
)

from blockdraft_drafter.method import DraftCacheLostError, all_finite
from blockdraft_drafter.requests import to_array
from blockdraft_drafter.session import Session, SlotPool
from blockdraft_models.sampling_options import GREEDY, Sampling
from blockdraft_protos.v1 import drafter_pb2, inference_pb2


@pytest.fixture
def session() -> Session:
    return Session(FakeMethod(), SlotPool(SPEC.max_sequences))


def test_repeated_features_are_refused_and_repaired(session: Session) -> None:
    features = whole_features(6)
    session.step(draft_request(1, [sequence_draft(7, 0, features[:4])]))
    response = session.step(draft_request(2, [sequence_draft(7, 0, features[:4])]))
    (error,) = response.sequence_errors
    assert error.code == drafter_pb2.SEQUENCE_ERROR_CODE_CONTEXT_MISMATCH
    assert error.expected_context_start == 4
    assert error.message == "context_start is 0, but the draft KV cache has 4 positions"
    response = session.step(draft_request(3, [sequence_draft(7, 4, features[4:])]))
    assert tuple(response.drafts[0].token_ids) == digest(features, 1, 3)


def test_caches_lost_in_a_step_of_another_stream_are_begun_anew() -> None:
    method, pool = FakeMethod(), SlotPool(SPEC.max_sequences)
    first, second = Session(method, pool), Session(method, pool)
    features = whole_features(2)
    for session in (first, second):
        session.step(draft_request(1, [sequence_draft(1, 0, features)]))
    method.fail_next = True
    with pytest.raises(DraftCacheLostError):
        first.step(draft_request(2, [sequence_draft(1, 2, features)]))
    (error,) = second.step(draft_request(2, [sequence_draft(1, 2, features)])).sequence_errors
    assert error.expected_context_start == 0
    assert pool.used == 1, "of the first stream, until it ends"
    second.step(draft_request(3, [sequence_draft(1, 0, features)]))
    assert context_lengths(second) == {1: 2}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([0, SPEC.vocab_size - 1], ""),
        ([0, SPEC.vocab_size], "token_ids are not all in [0, 10)"),
        ([-1, 0], "token_ids are not all in [0, 10)"),
        ([0], "1 token_ids for 2 feature rows"),
    ],
)
def test_tokens_are_those_of_the_features(
    session: Session, tokens: list[int], message: str
) -> None:
    part = sequence_draft(1, 0, whole_features(2))
    part.draft.token_ids[:] = tokens
    errors = session.step(draft_request(1, [part])).sequence_errors
    assert [error.message for error in errors] == ([message] if message else [])


def test_absent_features_are_no_rows(session: Session) -> None:
    session.step(draft_request(1, [sequence_draft(1, 0, whole_features(2))]))
    request = draft_request(2, [sequence_draft(1, 2, whole_features(0), 3, 1)])
    request.ClearField("features")
    (draft,) = session.step(request).drafts
    assert draft.context_length == 2
    assert tuple(draft.token_ids) == digest(whole_features(2), 3, 1)


def test_a_wrong_element_type_names_both(session: Session) -> None:
    features = whole_features(2).astype(ml_dtypes.bfloat16)
    (error,) = session.step(draft_request(1, [sequence_draft(1, 0, features)])).sequence_errors
    assert error.message == "features: they are bfloat16, expected float32"


def test_a_huge_shape_is_refused_without_being_allocated(session: Session) -> None:
    request = draft_request(1, [sequence_draft(1, 0, whole_features(1))])
    request.features.shape[0] = 2**60
    (error,) = session.step(request).sequence_errors
    assert "bytes of data" in error.message


@pytest.mark.parametrize("counts", [(1, 2, 0), (3, 2, 0), (4, -1, 0), (-1, 4, 0)])
def test_features_that_cannot_be_divided_are_refused(
    session: Session, counts: tuple[int, ...]
) -> None:
    parts = [sequence_draft(i, 0, whole_features(rows)) for i, rows in enumerate((2, 2, 0))]
    request = draft_request(1, parts)
    for sequence, count in zip(request.sequences, counts, strict=True):
        sequence.feature_rows = count
    response = session.step(request)
    # A sequence without features is served.
    assert [draft.sequence_id for draft in response.drafts] == [2]
    assert [error.sequence_id for error in response.sequence_errors] == [0, 1]
    for error in response.sequence_errors:
        assert error.code == drafter_pb2.SEQUENCE_ERROR_CODE_INVALID_INPUT
        assert "rows of them for feature_rows of" in error.message


def test_how_tokens_will_be_chosen_reaches_the_method() -> None:
    method = FakeMethod()
    session = Session(method, SlotPool(SPEC.max_sequences))
    parts = [sequence_draft(i, 0, whole_features(1)) for i in (1, 2)]
    parts[0].draft.sampling.CopyFrom(
        inference_pb2.SamplingOptions(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, seed=-1)
    )
    # The second says nothing, as of greedy sequences.
    session.step(draft_request(1, parts))
    assert [row.sampling for row in method.last_rows] == [
        Sampling(0.5, 7, 0.75, 0.25, -1),
        GREEDY,
    ]


def test_sampling_options_out_of_range_are_refused(session: Session) -> None:
    part = sequence_draft(1, 0, whole_features(1))
    part.draft.sampling.top_p = 2.0
    (error,) = session.step(draft_request(1, [part])).sequence_errors
    assert error.code == drafter_pb2.SEQUENCE_ERROR_CODE_INVALID_INPUT
    assert error.message == "sampling.top_p must be in (0, 1], got 2"


def test_recycled_choices_reach_the_method() -> None:
    method = FakeMethod()
    session = Session(method, SlotPool(SPEC.max_sequences))
    parts = [sequence_draft(i, 0, whole_features(1)) for i in (1, 2)]
    parts[0].draft.recycled.CopyFrom(
        drafter_pb2.RecycledChoices(positions=[2, 3], after_token_ids=[1, 3], token_ids=[3, 4])
    )
    session.step(draft_request(1, parts))
    told = [tuple(map(tuple, row.recycled)) for row in method.last_rows]
    assert told == [((2, 3), (1, 3), (3, 4)), ((), (), ())]


def test_a_context_has_at_most_its_capacity(session: Session) -> None:
    for step, start in enumerate(range(0, SPEC.max_context_tokens, 4), 1):
        part = sequence_draft(1, start, whole_features(4))
        assert not session.step(draft_request(step, [part])).sequence_errors
    part = sequence_draft(1, SPEC.max_context_tokens, whole_features(1))
    (error,) = session.step(draft_request(step + 1, [part])).sequence_errors
    assert error.code == drafter_pb2.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED
    assert context_lengths(session) == {1: SPEC.max_context_tokens}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"positions": [1]}, "the arrays of recycled choices are not equally long"),
        ({"after_token_ids": []}, "the arrays of recycled choices are not equally long"),
        ({"token_ids": [1, 1, 1]}, "the arrays of recycled choices are not equally long"),
        ({"token_ids": [0, SPEC.vocab_size]}, "recycled choices are not all in [0, 10)"),
        ({"token_ids": [-1, 0]}, "recycled choices are not all in [0, 10)"),
    ],
)
def test_recycled_choices_that_make_no_sense_are_refused(
    session: Session, wrong: dict[str, Any], message: str
) -> None:
    part = sequence_draft(1, 0, whole_features(2))
    right = {"positions": [4, 4], "after_token_ids": [1, 2], "token_ids": [0, 9]}
    part.draft.recycled.CopyFrom(drafter_pb2.RecycledChoices(**{**right, **wrong}))
    errors = session.step(draft_request(1, [part])).sequence_errors
    assert [error.message for error in errors] == [message]


def test_slots_are_never_given_twice() -> None:
    pool = SlotPool(2)
    slots = [pool.acquire(), pool.acquire()]
    assert sorted(slot for slot in slots if slot is not None) == [0, 1]
    assert pool.acquire() is None
    pool.release(1)
    with pytest.raises(ValueError, match="slot 1 is not in use"):
        pool.release(1)
    assert pool.acquire() == 1


def test_features_survive_the_wire() -> None:
    features = whole_features(3)
    np.testing.assert_array_equal(to_array(to_tensor(features)), features)
    with pytest.raises(ValueError, match="cannot be sent"):
        to_tensor(features.astype(np.float64))
    negative = drafter_pb2.Tensor(shape=[-1, 3], dtype=drafter_pb2.DATA_TYPE_FLOAT32)
    with pytest.raises(ValueError, match="negative axis"):
        to_array(negative)


class TestSharedMemory:
    """Features that lie in memory which the verifier has offered."""

    @pytest.fixture
    def memory(self) -> mmap.mmap:
        return mmap.mmap(-1, 4096)

    @pytest.fixture
    def session(self, memory: mmap.mmap) -> Session:
        return Session(FakeMethod(), SlotPool(SPEC.max_sequences), memory)

    def placed(
        self, memory: mmap.mmap, offset: int, features: NDArray[np.float32]
    ) -> drafter_pb2.Tensor:
        """Put features into the memory; return what a request says of them."""
        place = features.tobytes()
        memory[offset : offset + len(place)] = place
        return drafter_pb2.Tensor(
            shape=features.shape, dtype=drafter_pb2.DATA_TYPE_FLOAT32, shared_offset=offset
        )

    def test_they_are_those_of_a_message(self, session: Session, memory: mmap.mmap) -> None:
        features = whole_features(6)
        for step_id, (start, stop) in enumerate([(0, 2), (2, 6)], 1):
            new = features[start:stop]
            request = draft_request(step_id, [sequence_draft(7, start, new)])
            request.features.CopyFrom(self.placed(memory, 64, new))
            (draft,) = session.step(request).drafts
            # The memory is the verifier's again, which writes to it.
            memory[:] = b"\xff" * len(memory)
        assert tuple(draft.token_ids) == digest(features, 1, 3)

    def at(self, offset: int) -> drafter_pb2.DraftRequest:
        request = draft_request(1, [sequence_draft(7, 0, whole_features(1))])
        request.features.shared_offset = offset
        return request

    @pytest.mark.parametrize(("offset", "good"), [(0, True), (4084, True), (4085, False)])
    def test_they_lie_within_it(self, session: Session, offset: int, good: bool) -> None:
        response = session.step(self.at(offset))
        assert len(response.drafts) == good
        if not good:
            assert response.sequence_errors[0].message == "features: no 12 bytes are shared at 4085"

    @pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
    def test_offsets_outside_are_refused(self, session: Session, offset: int) -> None:
        (error,) = session.step(self.at(offset)).sequence_errors
        assert error.code == drafter_pb2.SEQUENCE_ERROR_CODE_INVALID_INPUT

    def test_without_memory_they_are_refused(self) -> None:
        (error,) = Session(FakeMethod(), SlotPool(1)).step(self.at(0)).sequence_errors
        assert error.message == "features: no 12 bytes are shared at 0"


def test_every_bfloat16_is_known_to_be_finite_or_not() -> None:
    values = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    finite = np.isfinite(values.astype(np.float32))
    assert [all_finite(values[i : i + 1]) for i in range(2**16)] == finite.tolist()
    assert all_finite(values[finite])
    assert not all_finite(values)
    assert all_finite(values[:0])


@pytest.mark.parametrize(("value", "finite"), [(3e38, True), (np.inf, False), (np.nan, False)])
def test_every_element_counts(value: float, finite: bool) -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        for place in range(3):
            values = np.zeros((1, 3), dtype)
            values[0, place] = value
            assert all_finite(values) == finite
            assert all_finite(-values) == finite
