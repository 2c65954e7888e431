"""The reason that a failed call carries."""

import grpc

from blockdraft_runtime.status import received_error


def error_reason(error: grpc.RpcError) -> str:
    received = received_error(error)
    assert received is not None
    return received.reason
