"""What a handshake must say, and the stream to a real drafter."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.certificates import Authority, write_peer
from tests.drafter.process import running_drafter, tiny_drafter_config, write_tiny_target
from tests.patience import PATIENCE_SECONDS

from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.device.cache import FeatureStore, Positions
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting import feature_writers
from blockdraft_verifier.drafting.feature_writers import MessageWriter, SharedWriter
from blockdraft_verifier.drafting.link import (
    DrafterDescription,
    GrpcDraftLink,
    check_description,
)

GOOD: dict[str, Any] = {
    "method": "dflash",
    "block_size": 8,
    "target_layer_ids": [0, 29],
    "feature_width": 1152,
    "feature_dtype": pb.DATA_TYPE_BFLOAT16,
    "max_feature_rows": 256,
    "max_context_tokens": 2048,
    "fingerprint": "0" * 16,
    "step_seconds": [0.01, 0.02],
    "shortest_step_seconds": [0.002],
}


PROJECTION = pb.FeatureProjection(input_width=1152)


def test_a_good_handshake_is_read() -> None:
    answer = pb.DrafterServiceDescribeResponse(**GOOD)
    check_description(answer, num_layers=30, hidden_size=576)
    description = DrafterDescription.from_proto(answer, FeatureForm((0, 29)))
    assert description.feature_row_bytes == 2 * 1152
    assert description.step_seconds == (0.01, 0.02)
    assert description.shortest_step_seconds == (0.002,)
    assert not description.trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layer_ids": [0, 30]}, "of a target of 30 layers"),
        ({"target_layer_ids": [-1, 3]}, "of a target of 30 layers"),
        ({"target_layer_ids": []}, "of a target of 30 layers"),
        ({"feature_width": 1151}, "features of 1151 elements"),
        ({"feature_dtype": pb.DATA_TYPE_FLOAT32}, "another type than bfloat16"),
        ({"block_size": 1}, "nothing to draft"),
        ({"max_feature_rows": 0}, "nothing to draft"),
        ({"projection": PROJECTION, "feature_width": 1153}, "1153 elements out of 1152"),
        ({"projection": pb.FeatureProjection(input_width=1151)}, "features of 1151 elements"),
        ({"projection": PROJECTION, "feature_width": 0}, "0 elements out of 1152"),
    ],
)
def test_an_impossible_handshake_is_refused(changes: dict[str, Any], message: str) -> None:
    answer = pb.DrafterServiceDescribeResponse(**{**GOOD, **changes})
    with pytest.raises(ValueError, match=message):
        check_description(answer, num_layers=30, hidden_size=576)


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[GrpcDraftLink]:
    """A link to a real drafter in this process."""
    target = write_tiny_target(tmp_path / "target")
    async with running_drafter(tiny_drafter_config(target), tmp_path / "s") as address:
        link = GrpcDraftLink(address, load_checkpoint_config(target))
        try:
            yield link
        finally:
            link.close()


async def test_a_drafter_on_this_host_shares_memory(link: GrpcDraftLink, tmp_path: Path) -> None:
    transport = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
    assert transport is not None
    assert isinstance(transport.feature_writer, SharedWriter)
    # Its name is gone; the memory goes with both processes.
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("shared-")]
    width = transport.description.feature_width
    store = FeatureStore(4, 4, width, np.dtype(ml_dtypes.bfloat16))
    values = np.random.default_rng(0).standard_normal((9, width)).astype(ml_dtypes.bfloat16)
    store.write([0, 1, 2], 0, values)
    answers = []
    for step, (start, stop) in enumerate([(0, 8), (8, 9)], start=1):
        positions = Positions([0, 1, 2], start, stop)
        request = pb.DraftRequest(step_id=step)
        request.sequences.add(
            sequence_id=1,
            context_start=start,
            feature_rows=positions.rows,
            anchor_token_id=1,
            draft_length=3,
        )
        transport.feature_writer.write(request.features, step, store, [positions])
        assert request.features.HasField("shared_offset")
        transport.send(request)
        answers.append(await asyncio.to_thread(transport.receive, PATIENCE_SECONDS))
    lengths = [answer.proposals[0].context_length for answer in answers if answer is not None]
    assert lengths == [8, 9]


async def test_a_drafter_on_another_host_shows_a_certificate_and_wants_one(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    target = write_tiny_target(tmp_path / "target")
    tls = write_peer(tmp_path, Authority("peers"))
    config = replace(tiny_drafter_config(target), peer_tls=tls)
    async with running_drafter(config, f"localhost:{unused_tcp_port}") as address:
        link = GrpcDraftLink(address, load_checkpoint_config(target), tls)
        plain = GrpcDraftLink(address, load_checkpoint_config(target))
        try:
            transport = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
            assert transport is not None
            assert isinstance(transport.feature_writer, MessageWriter)
            assert plain.current() is None
        finally:
            link.close()
            plain.close()


async def test_a_drafter_that_comes_back_with_another_authority_is_believed_with_the_files(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    target = write_tiny_target(tmp_path / "target")
    old, new = Authority("old"), Authority("new")
    tls = write_peer(tmp_path / "ours", old)
    address = f"localhost:{unused_tcp_port}"
    config = replace(tiny_drafter_config(target), peer_tls=write_peer(tmp_path / "theirs", old))
    async with running_drafter(config, address):
        link = GrpcDraftLink(address, load_checkpoint_config(target), tls)
        first = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
        assert first is not None
    link.lost(first)
    write_peer(tmp_path / "theirs", new)
    async with running_drafter(config, address):
        assert await asyncio.to_thread(link.wait, 1.0) is None
        write_peer(tmp_path / "ours", new)
        assert await asyncio.to_thread(link.wait, PATIENCE_SECONDS) is not None
        link.close()


async def test_without_room_features_go_in_messages(
    link: GrpcDraftLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
    assert first is not None
    monkeypatch.setattr(feature_writers, "SHARED_BYTES", 1 << 60)
    link.lost(first)
    second = await asyncio.to_thread(link.wait, PATIENCE_SECONDS)
    assert second is not None
    assert isinstance(second.feature_writer, MessageWriter)
