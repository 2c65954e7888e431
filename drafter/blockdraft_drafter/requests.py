"""Requests from the wire, checked before anything of a sequence is touched.

The checks protect the process, its draft KV cache and other sequences.
"""

import itertools
import math
import mmap
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.method import MethodSpec, all_finite
from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import drafter_pb2
from blockdraft_runtime.field_checks import checked_options
from blockdraft_runtime.status import ServiceError

_DTYPES: dict[drafter_pb2.DataType.ValueType, np.dtype[Any]] = {
    drafter_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    drafter_pb2.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def data_type(dtype: np.dtype[Any]) -> drafter_pb2.DataType.ValueType:
    """Return the wire name of an element type; raises ValueError if it has none."""
    for name, element_type in _DTYPES.items():
        if element_type == dtype:
            return name
    raise ValueError(f"element type {dtype} cannot be sent; use float32 or bfloat16")


class SequenceRefusedError(ValueError):
    """One sequence of a step cannot be served; the others can."""

    def __init__(self, code: drafter_pb2.SequenceErrorCode.ValueType, message: str) -> None:
        """Keep the code, which the verifier's repair depends on."""
        super().__init__(message)
        self.code = code


class StepFeatures:
    """The features of a step, divided among its sequences."""

    def __init__(
        self, request: drafter_pb2.DraftRequest, spec: MethodSpec, shared: mmap.mmap | None
    ) -> None:
        """Read the features of `request`, which may be in `shared` memory until it is answered."""
        counts = [sequence.feature_rows for sequence in request.sequences]
        self._ends = list(itertools.accumulate(counts, initial=0))
        self._features: NDArray[Any] = np.zeros((0, spec.feature_width), spec.feature_dtype)
        self._reason: str | None = None
        try:
            if request.HasField("features"):
                self._features = _check_features(request.features, spec, shared)
            rows = len(self._features)
            if min(counts, default=0) < 0 or self._ends[-1] != rows:
                raise ValueError(f"there are {rows} rows of them for feature_rows of {counts}")
        except ValueError as error:
            self._reason = str(error)
        self._all_finite = all_finite(self._features)

    def of(self, index: int) -> NDArray[Any]:
        """Return the features of the sequence at `index`, [feature_rows, feature_width]."""
        start, stop = self._ends[index : index + 2]
        if self._reason is not None and start != stop:
            raise _invalid(f"features: {self._reason}")
        rows = self._features[start:stop]
        # One NaN in the cache would spoil every later draft of its sequence.
        if not self._all_finite and not all_finite(rows):
            raise _invalid("features hold values that are not finite")
        return rows


def check_sequence(
    sequence: drafter_pb2.SequenceDraft, expected_start: int, spec: MethodSpec
) -> None:
    """Check everything about a sequence that needs neither its features nor a slot.

    `expected_start` is its context length, 0 if it is unknown. Raises SequenceRefusedError.
    """
    # The length comes first: a verifier out of step needs that error, whatever else is wrong.
    if sequence.context_start != expected_start:
        raise SequenceRefusedError(
            drafter_pb2.SEQUENCE_ERROR_CODE_CONTEXT_MISMATCH,
            f"context_start is {sequence.context_start}, but the draft KV cache has"
            f" {expected_start} positions",
        )
    rows = sequence.feature_rows
    if rows > spec.max_feature_rows:
        raise _invalid(f"{rows} feature rows in one request, more than {spec.max_feature_rows}")
    if not 0 <= sequence.anchor_token_id < spec.vocab_size:
        raise _invalid(
            f"anchor_token_id {sequence.anchor_token_id} is not in [0, {spec.vocab_size})"
        )
    if not 0 <= sequence.draft_length < spec.block_size:
        raise _invalid(f"draft_length {sequence.draft_length} is not in [0, {spec.block_size})")
    tokens = sequence.token_ids
    if (tokens or spec.reads_tokens) and len(tokens) != rows:
        raise _invalid(f"{len(tokens)} token_ids for {rows} feature rows")
    # They may become part of a training sample.
    if tokens and not 0 <= min(tokens) <= max(tokens) < spec.vocab_size:
        raise _invalid(f"token_ids are not all in [0, {spec.vocab_size})")
    recycled = sequence.recycled
    chosen = recycled.token_ids
    if not len(recycled.positions) == len(recycled.after_token_ids) == len(chosen):
        raise _invalid("the arrays of recycled choices are not equally long")
    if chosen and not 0 <= min(chosen) <= max(chosen) < spec.vocab_size:
        raise _invalid(f"recycled choices are not all in [0, {spec.vocab_size})")
    length = expected_start + rows
    if length > spec.max_context_tokens:
        raise SequenceRefusedError(
            drafter_pb2.SEQUENCE_ERROR_CODE_CAPACITY_EXCEEDED,
            f"the context would have {length} positions, more than {spec.max_context_tokens}",
        )


def sampling_of(sequence: drafter_pb2.SequenceDraft) -> Sampling:
    """Return the sampling options of a sequence; greedy if the request has none."""
    try:
        return Sampling(**checked_options(Sampling, sequence.sampling))
    except ServiceError as error:
        raise _invalid(error.message) from None


def _check_features(
    tensor: drafter_pb2.Tensor, spec: MethodSpec, shared: mmap.mmap | None
) -> NDArray[Any]:
    """Return the features of a step; raises ValueError if type, shape or size are wrong."""
    features = to_array(tensor, shared)
    if features.dtype != spec.feature_dtype:
        raise ValueError(f"they are {features.dtype}, expected {spec.feature_dtype}")
    if features.ndim != 2 or features.shape[1] != spec.feature_width:
        raise ValueError(f"shape {list(features.shape)}, expected [rows, {spec.feature_width}]")
    return features


def to_array(tensor: drafter_pb2.Tensor, shared: mmap.mmap | None = None) -> NDArray[Any]:
    """Return a read-only view of a wire tensor's elements, which may be in `shared` memory.

    Raises ValueError if the element type is unknown, an axis is negative, the number of bytes does
    not fit shape and element type, or they are not in the shared memory.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"unknown element type {tensor.dtype}")
    shape = tuple(tensor.shape)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative axis in shape {list(shape)}")
    expected = math.prod(shape) * dtype.itemsize
    if tensor.HasField("shared_offset"):
        offset = tensor.shared_offset
        if shared is None or offset < 0 or offset + expected > len(shared):
            raise ValueError(f"no {expected} bytes are shared at {offset}")
        return np.frombuffer(shared, dtype, math.prod(shape), offset).reshape(shape)
    # Asked for once: it is a copy.
    data = tensor.data
    if len(data) != expected:
        raise ValueError(
            f"{len(data)} bytes of data, but shape {list(shape)} of {dtype} takes {expected}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _invalid(message: str) -> SequenceRefusedError:
    return SequenceRefusedError(drafter_pb2.SEQUENCE_ERROR_CODE_INVALID_INPUT, message)
