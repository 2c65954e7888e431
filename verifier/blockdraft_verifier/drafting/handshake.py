"""A drafter's description, and the projection that it wants features to go through."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_verifier.device.cache import FEATURE_DTYPE
from blockdraft_verifier.device.feature_form import FeatureForm

# A matrix of an 8B target has 168 MB; it comes while the verifier compiles or decodes plainly.
FETCH_TIMEOUT_SECONDS = 120.0
_DTYPES: dict[pb.DataType.ValueType, np.dtype[Any]] = {
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, slots=True)
class DrafterDescription:
    """The description of a drafter; see `DrafterServiceDescribeResponse`."""

    method: str
    block_size: int
    features: FeatureForm
    feature_width: int
    max_feature_rows: int
    max_context_tokens: int
    fingerprint: str
    trained: bool
    step_seconds: tuple[float, ...]
    # Empty if a step takes as long whatever is wanted of its blocks.
    shortest_step_seconds: tuple[float, ...] = ()
    learns: bool = False
    version: int = 0  # of the weights of a drafter that learns, from 1; 0 for others

    @property
    def feature_row_bytes(self) -> int:
        """Size of one position's features on the wire."""
        return FEATURE_DTYPE.itemsize * self.feature_width

    @classmethod
    def from_proto(
        cls, message: pb.DrafterServiceDescribeResponse, features: FeatureForm
    ) -> "DrafterDescription":
        """Return the description in a response that `check_description` has accepted."""
        return cls(
            method=message.method,
            block_size=message.block_size,
            features=features,
            feature_width=message.feature_width,
            max_feature_rows=message.max_feature_rows,
            max_context_tokens=message.max_context_tokens,
            fingerprint=message.fingerprint,
            trained=message.trained,
            step_seconds=tuple(message.step_seconds),
            shortest_step_seconds=tuple(message.shortest_step_seconds),
            learns=message.learns,
            version=message.version.number,
        )


def check_description(
    message: pb.DrafterServiceDescribeResponse, num_layers: int, hidden_size: int
) -> None:
    """Raise `ValueError` if a target of this shape cannot give a drafter what it wants."""
    layer_ids = message.target_layer_ids
    if not layer_ids or not all(0 <= layer_id < num_layers for layer_id in layer_ids):
        raise ValueError(
            f"the drafter wants layers {list(layer_ids)} of a target of {num_layers} layers"
        )
    projected = message.HasField("projection")
    width = message.projection.input_width if projected else message.feature_width
    if width != len(layer_ids) * hidden_size:
        raise ValueError(
            f"the drafter wants features of {width} elements, "
            f"{len(layer_ids)} layers of width {hidden_size} give another number"
        )
    if not 1 <= message.feature_width <= width:
        raise ValueError(f"the drafter wants {message.feature_width} elements out of {width}")
    if message.feature_dtype != pb.DATA_TYPE_BFLOAT16:
        raise ValueError("the drafter wants features in another type than bfloat16")
    if message.block_size < 2 or message.max_feature_rows < 1:
        raise ValueError("the drafter's limits leave nothing to draft")


def fetch_form(
    stub: DrafterServiceStub,
    response: pb.DrafterServiceDescribeResponse,
    current_form: FeatureForm | None,
) -> FeatureForm:
    """Return the form in which a drafter wants its features; `current_form` if that is it.

    Raises `ValueError` if the projection that is fetched is not the one described.
    """
    layer_ids = tuple(response.target_layer_ids)
    if not response.HasField("projection"):
        return FeatureForm(layer_ids)
    described = response.projection
    if current_form is not None and (current_form.layer_ids, current_form.fingerprint) == (
        layer_ids,
        described.fingerprint,
    ):
        return current_form
    dtype = _DTYPES.get(described.dtype)
    if dtype is None:
        raise ValueError(f"the drafter's projection has the unknown element type {described.dtype}")
    rows, columns = response.feature_width, described.input_width
    input_normalized = described.HasField("input_norm_epsilon")
    normalized = described.HasField("norm_epsilon")
    if input_normalized and not described.input_norm_joint and columns % rows:
        raise ValueError(f"the drafter normalizes {rows} elements each out of {columns}")
    sizes = rows * columns, rows if normalized else 0, columns if input_normalized else 0
    elements = _fetch(stub, described.fingerprint, np.empty(sum(sizes), dtype))
    weight, scale, input_scale = np.split(elements, np.cumsum(sizes[:-1]))
    projection = FeatureProjection(
        weight.reshape(rows, columns),
        scale if normalized else None,
        described.norm_epsilon if normalized else described.input_norm_epsilon,
        input_scale if input_normalized else None,
        described.input_norm_joint,
    )
    if projection.fingerprint() != described.fingerprint:
        raise ValueError("the drafter's projection is not the one that it described")
    return FeatureForm(layer_ids, projection, described.fingerprint)


def _fetch(stub: DrafterServiceStub, fingerprint: str, elements: np.ndarray) -> np.ndarray:
    """Fill `elements` with the drafter's projection."""
    target, filled = elements.view(np.uint8), 0
    request = pb.FetchProjectionRequest(fingerprint=fingerprint)
    for piece in stub.FetchProjection(request, timeout=FETCH_TIMEOUT_SECONDS):
        data = np.frombuffer(piece.data, np.uint8)
        if filled + data.size > target.size:
            raise ValueError(f"the drafter's projection has more than {target.size} bytes")
        target[filled : filled + data.size] = data
        filled += data.size
    if filled < target.size:
        raise ValueError(f"the drafter's projection ended after {filled} of {target.size} bytes")
    return elements
