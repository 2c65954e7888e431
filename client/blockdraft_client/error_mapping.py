"""From a failed gRPC call to an exception of the SDK."""

import re
from typing import cast

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from blockdraft_client.errors import (
    ApiError,
    AuthenticationError,
    BlockdraftError,
    ConnectionFailedError,
    DeadlineExceededError,
    InternalServerError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RequestCancelledError,
    UnavailableError,
)
from blockdraft_client.results import PartialCompletion
from blockdraft_runtime.status import details_of

ERROR_OF_CODE: dict[grpc.StatusCode, type[ApiError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.INTERNAL: InternalServerError,
    grpc.StatusCode.UNKNOWN: InternalServerError,
    grpc.StatusCode.DATA_LOSS: InternalServerError,
}

TLS_SIGNS = ("ssl", "tls", "handshake", "certificate", "socket closed")
REFUSED_HINT = "; is a server running there? `blockdraft serve` starts one"
HTTP_HINT = "; the gRPC API has a port of its own, 50051 by default"
TLS_HINT = "; check that both sides agree on TLS and that the certificates are trusted"


def from_rpc_error(
    error: grpc.RpcError, address: str, deadline: str, partial: PartialCompletion | None = None
) -> BlockdraftError:
    """Return the exception to raise from `error` of grpc or grpc.aio.

    The call was made to `address` and had this `deadline`, in words.
    """
    code, message = error.code(), error.details() or error.code().name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{address}: {deadline} passed: {message}", partial=partial)
    if code is grpc.StatusCode.CANCELLED:
        return RequestCancelledError(message, partial=partial)
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))
    except ValueError:
        # A proxy rewrote the code or the message: the details describe another error.
        status = None
    info, field, retry_after = details_of(status or Status())
    if code is grpc.StatusCode.UNAVAILABLE and info is None:
        # Every error of a blockdraft server carries an ErrorInfo; this one was made on the way.
        # gRPC wraps the system's error: `...: connect: Connection refused (111)`.
        if refused := re.search(r"Connection refused|No such file or directory", message):
            message, hint = refused[0], REFUSED_HINT
        elif "http1.x server" in message:
            message, hint = "an HTTP server listens there", HTTP_HINT
        else:
            hint = TLS_HINT if any(sign in message.lower() for sign in TLS_SIGNS) else ""
        return ConnectionFailedError(f"cannot reach {address}: {message}{hint}", partial=partial)
    kind, reason, metadata = ERROR_OF_CODE.get(code, ApiError), code.name, dict[str, str]()
    if info is not None:
        reason, metadata = info.reason, dict(info.metadata)
    elif "larger than max" in message:
        # grpc reports its size limits with the code of a full queue, but trying again is futile.
        kind, reason = InvalidRequestError, "MESSAGE_TOO_LARGE"
    return kind(
        message,
        code=code,
        reason=reason,
        metadata=metadata,
        request_id=metadata.get("request_id") or (partial.request_id if partial else None),
        retry_after_seconds=retry_after,
        field=field,
        partial=partial,
    )
