"""Errors that something between client and server made or mangled."""

from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from blockdraft_client import (
    ApiError,
    BlockdraftError,
    ConnectionFailedError,
    InternalServerError,
    OverloadedError,
)
from blockdraft_client.error_mapping import from_rpc_error


class FailedCall(grpc.RpcError):
    """What grpc raises, made by hand."""

    def __init__(
        self, code: grpc.StatusCode, details: str | None, status: Status | None = None
    ) -> None:
        super().__init__(details)
        self._code, self._details = code, details
        self._trailers = () if status is None else (("grpc-status-details-bin", status),)

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> Any:
        return tuple((key, value.SerializeToString()) for key, value in self._trailers)


def status(code: int, message: str, domain: str) -> Status:
    packed = AnyMessage()
    packed.Pack(ErrorInfo(reason="REASON", domain=domain))
    return Status(code=code, message=message, details=[packed])


def mapped(error: FailedCall) -> BlockdraftError:
    return from_rpc_error(error, "host:1", "a deadline")


def test_a_proxy_without_a_server_is_a_failed_connection() -> None:
    error = mapped(FailedCall(grpc.StatusCode.UNAVAILABLE, "no healthy upstream"))
    assert type(error) is ConnectionFailedError
    assert str(error) == "cannot reach host:1: no healthy upstream"


@pytest.mark.parametrize("details", ["Socket closed", "Ssl handshake failed: WRONG_VERSION"])
def test_a_refused_handshake_names_tls(details: str) -> None:
    assert "agree on TLS" in str(mapped(FailedCall(grpc.StatusCode.UNAVAILABLE, details)))


def test_the_port_of_http_is_told_from_that_of_grpc() -> None:
    details = "last error: INTERNAL: ipv4:1: Trying to connect an http1.x server (HTTP status 400)"
    error = mapped(FailedCall(grpc.StatusCode.UNAVAILABLE, details))
    assert "an HTTP server listens there; the gRPC API has a port of its own" in str(error)


def test_reasons_of_other_domains_do_not_count() -> None:
    foreign = status(8, "slow down", "example.com")
    error = mapped(FailedCall(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", foreign))
    assert isinstance(error, OverloadedError)
    assert error.reason == "RESOURCE_EXHAUSTED"


def test_details_that_contradict_the_status_do_not_count() -> None:
    rewritten = status(3, "bad", "blockdraft")
    error = mapped(FailedCall(grpc.StatusCode.INTERNAL, "proxy failed", rewritten))
    assert isinstance(error, InternalServerError)
    assert error.reason == "INTERNAL"


def test_an_error_without_a_message_has_its_code() -> None:
    error = mapped(FailedCall(grpc.StatusCode.UNIMPLEMENTED, None))
    assert type(error) is ApiError
    assert str(error) == "UNIMPLEMENTED: UNIMPLEMENTED"
