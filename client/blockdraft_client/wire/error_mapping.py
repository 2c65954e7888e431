"""From a failed gRPC call to an exception of the SDK."""

from dataclasses import dataclass
from typing import cast

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
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

ERROR_DOMAIN = "blockdraft"

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
TLS_HINT = "; check that both sides agree on TLS and that the certificates are trusted"


@dataclass(slots=True)
class StatusDetails:
    """The google.rpc details of one status, as far as they were sent."""

    info: ErrorInfo | None = None
    field: str | None = None
    retry_after_seconds: float | None = None


def read_details(error: grpc.RpcError) -> StatusDetails:
    """Return the details a failed call carries; those of other domains do not count."""
    read = StatusDetails()
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))
    except ValueError:
        # A proxy rewrote the code or the message: the details describe another error.
        return read
    info, bad_request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            read.info = info
        elif detail.Unpack(bad_request) and bad_request.field_violations:
            read.field = bad_request.field_violations[0].field
        elif detail.Unpack(retry):
            read.retry_after_seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return read


def from_rpc_error(
    error: grpc.RpcError, target: str, partial: PartialCompletion | None = None
) -> BlockdraftError:
    """Return the exception to raise from `error`.

    Args:
        error: What a call of grpc or grpc.aio raised.
        target: Address of the server, for the message.
        partial: What had arrived of a stream.
    """
    code, message = error.code(), error.details() or error.code().name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{target}: {message}", partial=partial)
    if code is grpc.StatusCode.CANCELLED:
        return RequestCancelledError(message, partial=partial)
    details = read_details(error)
    if code is grpc.StatusCode.UNAVAILABLE and details.info is None:
        # Every error of a blockdraft server carries an ErrorInfo; this one was made on the way.
        hint = TLS_HINT if any(sign in message.lower() for sign in TLS_SIGNS) else ""
        return ConnectionFailedError(f"cannot reach {target}: {message}{hint}", partial=partial)
    kind, reason, metadata = ERROR_OF_CODE.get(code, ApiError), code.name, dict[str, str]()
    if details.info is not None:
        reason, metadata = details.info.reason, dict(details.info.metadata)
    elif "larger than max" in message:
        # grpc reports its size limits with the code of a full queue, but trying again is futile.
        kind, reason = InvalidRequestError, "MESSAGE_TOO_LARGE"
    request_id = metadata.get("request_id") or (partial.request_id if partial else None)
    return kind(
        message,
        code=code,
        reason=reason,
        metadata=metadata,
        request_id=request_id,
        retry_after_seconds=details.retry_after_seconds,
        field=details.field,
        partial=partial,
    )
