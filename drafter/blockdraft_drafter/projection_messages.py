"""The drafter's first linear map as messages, for the verifier to apply."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from blockdraft_drafter.requests import data_type
from blockdraft_protos.v1 import drafter_pb2

if TYPE_CHECKING:
    from blockdraft_models.decoder.feature_projection import FeatureProjection

_PIECE_BYTES = 4 * 1024 * 1024


def describe_projection(projection: "FeatureProjection") -> drafter_pb2.FeatureProjection:
    """Return what the handshake says of a projection whose arrays are on the host."""
    return drafter_pb2.FeatureProjection(
        input_width=projection.input_width,
        dtype=data_type(projection.weight.dtype),
        norm_epsilon=None if projection.scale is None else projection.eps,
        fingerprint=projection.fingerprint(),
    )


def projection_pieces(
    projection: "FeatureProjection",
) -> Iterator[drafter_pb2.FetchProjectionResponse]:
    """Yield the arrays of a projection, piece by piece."""
    for array in (projection.weight, projection.scale):
        if array is not None:
            elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, elements.size, _PIECE_BYTES):
                piece = elements[start : start + _PIECE_BYTES].tobytes()
                yield drafter_pb2.FetchProjectionResponse(data=piece)
