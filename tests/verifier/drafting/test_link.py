"""What a handshake must say."""

from typing import Any

import pytest

from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_verifier.drafting.link import DrafterDescription

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
}


def test_a_good_handshake_is_read() -> None:
    answer = pb.DrafterServiceDescribeResponse(**GOOD)
    description = DrafterDescription.from_proto(answer, num_layers=30, hidden_size=576)
    assert description.target_layer_ids == (0, 29)
    assert description.step_seconds == (0.01, 0.02)
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
    ],
)
def test_an_impossible_handshake_is_refused(changes: dict[str, Any], message: str) -> None:
    answer = pb.DrafterServiceDescribeResponse(**{**GOOD, **changes})
    with pytest.raises(ValueError, match=message):
        DrafterDescription.from_proto(answer, num_layers=30, hidden_size=576)
