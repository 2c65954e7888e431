"""The drafter's first linear map, which the verifier applies to features before it sends them."""

from typing import Any

import ml_dtypes
import numpy as np

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_verifier.device.feature_form import FeatureForm

# A matrix of an 8B target has 168 MB; it comes while the verifier compiles or decodes plainly.
FETCH_TIMEOUT_SECONDS = 120.0

_DTYPES: dict[pb.DataType.ValueType, np.dtype[Any]] = {
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def fetch_form(
    stub: DrafterServiceStub, answer: pb.DrafterServiceDescribeResponse, held: FeatureForm | None
) -> FeatureForm:
    """Return the form in which a drafter wants its features.

    Args:
        stub: The drafter.
        answer: How it described itself; its widths fit each other.
        held: The form of the drafter before; its projection is not fetched again if it is the same.

    Raises:
        grpc.RpcError: If the projection cannot be fetched.
        ValueError: If it is not what the drafter described.
    """
    layer_ids = tuple(answer.target_layer_ids)
    if not answer.HasField("projection"):
        return FeatureForm(layer_ids)
    said = answer.projection
    if held is not None and (held.layer_ids, held.fingerprint) == (layer_ids, said.fingerprint):
        return held
    dtype = _DTYPES.get(said.dtype)
    if dtype is None:
        raise ValueError(f"the drafter's projection has the unknown element type {said.dtype}")
    shape = answer.feature_width, said.input_width
    normalized = said.HasField("norm_epsilon")
    elements = _fetch(stub, said.fingerprint, dtype, shape[0] * (shape[1] + normalized))
    scale = elements[shape[0] * shape[1] :] if normalized else None
    weight = elements[: shape[0] * shape[1]].reshape(shape)
    projection = FeatureProjection(weight, scale, said.norm_epsilon)
    if projection.fingerprint() != said.fingerprint:
        raise ValueError("the drafter's projection is not the one that it described")
    return FeatureForm(layer_ids, projection, said.fingerprint)


def _fetch(
    stub: DrafterServiceStub, fingerprint: str, dtype: np.dtype[Any], count: int
) -> np.ndarray:
    """Return `count` elements, as they come.

    Raises:
        grpc.RpcError: If they cannot be fetched.
        ValueError: If there are more or fewer.
    """
    elements = np.empty(count, dtype)
    room, filled = elements.view(np.uint8), 0
    request = pb.FetchProjectionRequest(fingerprint=fingerprint)
    for piece in stub.FetchProjection(request, timeout=FETCH_TIMEOUT_SECONDS):
        data = np.frombuffer(piece.data, np.uint8)
        if filled + data.size > room.size:
            raise ValueError(f"the drafter's projection has more than {room.size} bytes")
        room[filled : filled + data.size] = data
        filled += data.size
    if filled < room.size:
        raise ValueError(f"the drafter's projection ended after {filled} of {room.size} bytes")
    return elements
