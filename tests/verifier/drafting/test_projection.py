"""The drafter's projection as the verifier fetches it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.drafter.process import running_drafter, tiny_drafter_config, write_tiny_target
from tests.patience import PATIENCE_SECONDS

from blockdraft_drafter.service import describe_projection, projection_pieces
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.handshake import fetch_form
from blockdraft_verifier.drafting.link import GrpcDraftLink

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((6, 18)).astype(ml_dtypes.bfloat16)
NORMALIZED = FeatureProjection(WEIGHT, np.ones(6, ml_dtypes.bfloat16), 1e-6)
PROJECTIONS = {
    "normalized": NORMALIZED,
    "bare": FeatureProjection(WEIGHT),
    "normalized before": FeatureProjection(
        WEIGHT, None, 1e-4, np.arange(18).astype(ml_dtypes.bfloat16)
    ),
    "normalized jointly": FeatureProjection(
        WEIGHT[:, :16], None, 1e-4, np.arange(16).astype(ml_dtypes.bfloat16), joint=True
    ),
    "float32": FeatureProjection(WEIGHT.astype(np.float32), np.ones(6, np.float32), 1e-5),
}


@dataclass
class Drafter(DrafterServiceStub):
    """Stands for the stub of a drafter that may send other bytes than it should."""

    projection: FeatureProjection
    change: Callable[[bytes], bytes] = bytes
    asked: list[str] = field(default_factory=list)

    def description(self) -> pb.DrafterServiceDescribeResponse:
        return pb.DrafterServiceDescribeResponse(
            target_layer_ids=(0, 1, 2),
            feature_width=self.projection.width,
            projection=describe_projection(self.projection),
        )

    def FetchProjection(  # type: ignore[override]  # noqa: N802
        self, request: pb.FetchProjectionRequest, timeout: float
    ) -> Iterator[pb.FetchProjectionResponse]:
        self.asked.append(request.fingerprint)
        data = b"".join(piece.data for piece in projection_pieces(self.projection))
        data = self.change(data)
        # Cut in the middle of elements.
        for start in range(0, len(data), 7):
            yield pb.FetchProjectionResponse(data=data[start : start + 7])


def fetched(drafter: Drafter, held: FeatureForm | None = None) -> FeatureForm:
    return fetch_form(drafter, drafter.description(), held)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_it_arrives_as_it_is(name: str) -> None:
    projection = PROJECTIONS[name]
    form = fetched(Drafter(projection))
    assert form.layer_ids == (0, 1, 2)
    assert form.fingerprint == projection.fingerprint()
    found = form.projection
    assert found is not None
    assert found.weight.dtype == projection.weight.dtype
    np.testing.assert_array_equal(found.weight, projection.weight)
    for scale, sent in (
        (found.scale, projection.scale),
        (found.input_scale, projection.input_scale),
    ):
        np.testing.assert_array_equal(np.asarray(scale), np.asarray(sent))
    assert found.eps == projection.eps
    assert form.width(999) == 6


def test_it_is_fetched_once() -> None:
    drafter = Drafter(NORMALIZED)
    form = fetched(drafter)
    assert fetched(drafter, form) is form
    assert len(drafter.asked) == 1
    other = Drafter(replace(NORMALIZED, eps=1e-3))
    changed = fetched(other, form)
    assert changed != form
    assert other.asked == [changed.fingerprint]
    # Other layers make other features, whatever becomes of them.
    assert fetched(drafter, replace(form, layer_ids=(0, 1))) == form


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "ended after 227 of 228 bytes"),
        (lambda data: data + b"x", "more than 228 bytes"),
        (lambda data: data[:5] + b"xy" + data[7:], "not the one that it described"),
    ],
)
def test_another_than_described_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fetched(Drafter(NORMALIZED, change))


def test_parts_of_another_width_are_not_normalized() -> None:
    drafter = Drafter(PROJECTIONS["normalized before"])
    response = drafter.description()
    response.feature_width = 4
    with pytest.raises(ValueError, match="normalizes 4 elements each out of 18"):
        fetch_form(drafter, response, None)


def test_unknown_element_types_are_refused() -> None:
    drafter = Drafter(NORMALIZED)
    response = drafter.description()
    response.projection.dtype = pb.DATA_TYPE_UNSPECIFIED
    with pytest.raises(ValueError, match="unknown element type 0"):
        fetch_form(drafter, response, None)


async def test_from_a_real_drafter(tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    settings = replace(tiny_drafter_config(target), feature_form="projected")
    async with running_drafter(settings, tmp_path / "s") as address:
        link = GrpcDraftLink(address, load_checkpoint_config(target))
        try:
            first = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
            assert first is not None
            form = first.description.features
            assert form.projection is not None
            assert form.projection.weight.shape == (32, 64)
            assert first.description.feature_row_bytes == 2 * 32
            link.lost(first)
            second = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
            assert second is not None
            assert second.description.features.projection is form.projection
        finally:
            link.close()
