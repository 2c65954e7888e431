"""The ways from the verifier's process to the drafter's."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import grpc

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.instant_drafter import NO_TARGET
from blockdraft_bench.link.command import TransportName
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub
from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.feature_writers import SharedWriter, offer_shared_memory
from blockdraft_verifier.drafting.handshake import DrafterDescription, check_description
from blockdraft_verifier.drafting.link import (
    HANDSHAKE_TIMEOUT_SECONDS,
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
def over_grpc(address: str, width: int, *, shared: bool = False) -> Iterator[DraftTransport]:
    """Connect as `GrpcDraftLink` does: a handshake, then one stream.

    Args:
        address: The drafter's.
        width: Elements of a feature.
        shared: Whether features go through shared memory.

    Raises:
        grpc.RpcError: If the drafter does not answer.
        ValueError: If it wants other features.
        BenchError: If it does not map the memory that is to be shared.
    """
    request = pb.DrafterServiceDescribeRequest(target_fingerprint=NO_TARGET)
    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        stub = DrafterServiceStub(channel)
        answer = stub.Describe(request, timeout=HANDSHAKE_TIMEOUT_SECONDS)
        # The features of a single layer are as wide as that layer.
        check_description(answer, num_layers=1, hidden_size=width)
        form = FeatureForm(tuple(answer.target_layer_ids))
        description = DrafterDescription.from_proto(answer, form)
        offer = offer_shared_memory(address) if shared else None
        transport = GrpcDraftTransport(stub, description, offer)
        if shared and not isinstance(transport.feature_writer, SharedWriter):
            raise BenchError("the drafter does not map the memory that is to be shared")
        try:
            yield transport
        finally:
            transport.close()


def _socket(folder: Path) -> str:
    return f"unix:{folder / 'drafter.sock'}"


WAYS: Mapping[TransportName, Way] = {
    "shared-memory": Way(_socket, functools.partial(over_grpc, shared=True)),
    "unix": Way(_socket, over_grpc),
    "tcp": Way(lambda folder: "127.0.0.1:0", over_grpc),
}
