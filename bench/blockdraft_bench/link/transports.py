"""The ways from the verifier's process to the drafter's."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import grpc

from blockdraft_bench.engine.instant_drafter import NO_TARGET
from blockdraft_bench.link.command import TransportName
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_verifier.drafting.link import (
    HANDSHAKE_TIMEOUT_SECONDS,
    DrafterDescription,
    DraftTransport,
    GrpcDraftTransport,
)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a drafter.

    Attributes:
        listen: Returns where the drafter is to listen, given a private folder.
        connect: Opens a stream, given the drafter's address and the width of a feature.
    """

    listen: Callable[[Path], str]
    connect: Callable[[str, int], AbstractContextManager[DraftTransport]]


@contextlib.contextmanager
def over_grpc(address: str, width: int) -> Iterator[DraftTransport]:
    """Connect as `GrpcDraftLink` does: a handshake, then one stream.

    Args:
        address: The drafter's.
        width: Elements of a feature.

    Raises:
        grpc.RpcError: If the drafter does not answer.
        ValueError: If it wants other features.
    """
    request = pb.DrafterServiceDescribeRequest(target_fingerprint=NO_TARGET)
    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        stub = DrafterServiceStub(channel)
        answer = stub.Describe(request, timeout=HANDSHAKE_TIMEOUT_SECONDS)
        # The features of a single layer are as wide as that layer.
        description = DrafterDescription.from_proto(answer, num_layers=1, hidden_size=width)
        transport = GrpcDraftTransport(stub, description)
        try:
            yield transport
        finally:
            transport.close()


WAYS: Mapping[TransportName, Way] = {
    "unix": Way(lambda folder: f"unix:{folder / 'drafter.sock'}", over_grpc),
    "tcp": Way(lambda folder: "127.0.0.1:0", over_grpc),
}
