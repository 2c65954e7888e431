"""Any mix of valid and faulty requests, on two streams at once, against a dict."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray
from tests.drafter.fake_method import SPEC, FakeMethod, digest
from tests.drafter.requests import (
    Part,
    context_lengths,
    draft_request,
    sequence_draft,
    whole_features,
)

from blockdraft_drafter.method import DraftCacheLostError
from blockdraft_drafter.session import Session, SlotPool, StepOutOfOrderError
from blockdraft_protos.v1 import drafter_pb2

CODE = drafter_pb2.SequenceErrorCode
SEQUENCE_IDS = st.integers(1, 5)
FAULTS = (
    *("none", "none", "none", "start", "nan", "anchor", "draft_length", "tokens", "rows"),
    "twice",
)
STEP_FAULTS = ("none", "none", "none", "width", "short", "dtype", "count")


def spoil(part: Part, fault: str) -> Part:
    """Break one thing about a valid part of a step."""
    draft, features = part
    if fault == "start":
        draft.context_start += 1
    elif fault == "nan":
        features = np.full((1, SPEC.feature_width), np.nan, np.float32)
    elif fault == "anchor":
        draft.anchor_token_id = SPEC.vocab_size
    elif fault == "draft_length":
        draft.draft_length = SPEC.block_size
    elif fault == "tokens":
        draft.token_ids[:] = [SPEC.vocab_size] * len(features)
        draft.token_ids.append(0)
    elif fault == "rows":
        features = np.zeros((SPEC.max_feature_rows + 1, SPEC.feature_width), np.float32)
    draft.feature_rows = len(features)
    return Part(draft, features)


def spoil_step(request: drafter_pb2.DraftRequest, fault: str) -> None:
    """Break one thing about the features of a step."""
    if fault == "width":
        request.features.shape[1] += 1
    elif fault == "short":
        request.features.data += b"\0"
    elif fault == "dtype":
        request.features.dtype = drafter_pb2.DATA_TYPE_UNSPECIFIED
    elif fault == "count":
        request.sequences[0].feature_rows += 1


class Streams(RuleBasedStateMachine):
    """Two sessions on one pool; the model is one dict of features per stream."""

    def __init__(self) -> None:
        super().__init__()
        self.method = FakeMethod()
        self.pool = SlotPool(SPEC.max_sequences)
        self.sessions = [Session(self.method, self.pool) for _ in range(2)]
        self.models: list[dict[int, NDArray[Any]]] = [{}, {}]
        self.steps = [0, 0]

    def used(self) -> int:
        return sum(len(model) for model in self.models)

    @rule(
        stream=st.integers(0, 1),
        items=st.lists(
            st.tuples(
                SEQUENCE_IDS,
                st.integers(0, SPEC.max_feature_rows),
                st.integers(0, SPEC.block_size - 1),
                st.sampled_from(FAULTS),
                st.integers(0, 99),
            ),
            max_size=4,
            unique_by=lambda item: item[0],
        ),
        released=st.lists(SEQUENCE_IDS, max_size=2),
        step_fault=st.sampled_from(STEP_FAULTS),
    )
    def step(
        self,
        stream: int,
        items: list[tuple[int, int, int, str, int]],
        released: list[int],
        step_fault: str,
    ) -> None:
        model = self.models[stream]
        for sequence_id in released:
            model.pop(sequence_id, None)
        expected: dict[int, tuple[int, ...]] = {}
        errors: dict[int, tuple[int, int]] = {}
        parts: list[Part] = []
        # The first sequence then brings features by its own account.
        miscounted = items[0][0] if items and step_fault == "count" else None
        for sequence_id, rows, draft_length, fault, seed in items:
            known = model.get(sequence_id, whole_features(0))
            start = len(known)
            features = whole_features(rows, seed=seed)
            part = sequence_draft(sequence_id, start, features, seed % 10, draft_length)
            part = spoil(part, fault)
            parts += [part] * (2 if fault == "twice" else 1)
            told = len(part.features) + (sequence_id == miscounted)
            # In the order of the checks: features are looked at last, and then slots are given.
            if fault == "start":
                errors[sequence_id] = (CODE.SEQUENCE_ERROR_CODE_CONTEXT_MISMATCH, start)
            elif fault not in ("none", "nan") or told > SPEC.max_feature_rows:
                errors[sequence_id] = (CODE.SEQUENCE_ERROR_CODE_INVALID_INPUT, start)
            elif start + told > SPEC.max_context_tokens:
                errors[sequence_id] = (CODE.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED, start)
            elif fault == "nan" or (step_fault != "none" and told > 0):
                errors[sequence_id] = (CODE.SEQUENCE_ERROR_CODE_INVALID_INPUT, start)
            elif sequence_id not in model and self.used() == SPEC.max_sequences:
                errors[sequence_id] = (CODE.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED, start)
            else:
                model[sequence_id] = np.concatenate([known, features])
                expected[sequence_id] = digest(model[sequence_id], seed % 10, draft_length)
        self.steps[stream] += 1
        request = draft_request(self.steps[stream], parts, released)
        if parts:
            spoil_step(request, step_fault)
        response = self.sessions[stream].step(request)
        assert response.step_id == self.steps[stream]
        assert {each.sequence_id: tuple(each.token_ids) for each in response.drafts} == expected
        assert len(response.drafts) == len(expected)
        for draft in response.drafts:
            assert draft.context_length == len(model[draft.sequence_id])
        assert {
            e.sequence_id: (e.code, e.expected_context_start) for e in response.sequence_errors
        } == errors
        assert len(response.sequence_errors) == len(errors)
        assert all(error.message for error in response.sequence_errors)

    @rule(stream=st.integers(0, 1), wrong=st.sampled_from([-1, 0, 2, 5]))
    def step_out_of_order(self, stream: int, wrong: int) -> None:
        steps = self.method.steps
        request = draft_request(self.steps[stream] + wrong, [], list(self.models[stream]))
        with pytest.raises(StepOutOfOrderError) as caught:
            self.sessions[stream].step(request)
        assert caught.value.expected == self.steps[stream] + 1
        assert self.method.steps == steps

    @rule(stream=st.integers(0, 1))
    def end_and_reopen(self, stream: int) -> None:
        self.sessions[stream].close()
        self.sessions[stream] = Session(self.method, self.pool)
        self.models[stream] = {}
        self.steps[stream] = 0

    @rule(stream=st.integers(0, 1))
    def device_failure(self, stream: int) -> None:
        if not self.models[stream]:
            return
        sequence_id, known = next(iter(self.models[stream].items()))
        message = sequence_draft(sequence_id, len(known), whole_features(0))
        self.method.fail_next = True
        self.steps[stream] += 1
        with pytest.raises(DraftCacheLostError):
            self.sessions[stream].step(draft_request(self.steps[stream], [message]))
        self.end_and_reopen(stream)
        # The other stream goes on, and has to learn that its draft KV caches are gone as well.
        other = 1 - stream
        lost, self.models[other] = self.models[other], {}
        self.steps[other] += 1
        probes = [
            sequence_draft(sequence_id, max(1, len(known)), whole_features(0))
            for sequence_id, known in lost.items()
        ]
        response = self.sessions[other].step(draft_request(self.steps[other], probes))
        assert all(error.expected_context_start == 0 for error in response.sequence_errors)
        assert len(response.sequence_errors) == len(lost)

    @invariant()
    def lengths_agree_and_no_slot_leaks(self) -> None:
        for session, model in zip(self.sessions, self.models, strict=True):
            expected = {sequence_id: len(rows) for sequence_id, rows in model.items()}
            assert context_lengths(session) == expected
        assert self.pool.used == self.used()


Streams.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestStreams = Streams.TestCase
