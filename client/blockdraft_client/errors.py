"""The exceptions of the SDK.

    BlockdraftError
    ├── ConnectionFailedError        no blockdraft server responded
    ├── ClientClosedError            the client was closed before the call
    ├── DeadlineExceededError        the deadline of the call passed
    ├── RequestCancelledError        the call was cancelled
    ├── InvalidOutputError           the completion is not what `response_format` asks for
    └── ApiError                     the server answered with an error
        ├── InvalidRequestError      INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION
        ├── NotFoundError            NOT_FOUND
        ├── AuthenticationError      UNAUTHENTICATED
        ├── PermissionDeniedError    PERMISSION_DENIED
        ├── OverloadedError          RESOURCE_EXHAUSTED
        ├── UnavailableError         UNAVAILABLE
        └── InternalServerError      INTERNAL, UNKNOWN, DATA_LOSS

Any other status is a plain `ApiError`. The exception of grpc, if there was one, is the `__cause__`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command line catches these errors before it knows whether it needs grpc at all.
    import grpc

    from blockdraft_client.results import Completion, PartialCompletion


class BlockdraftError(Exception):
    """Anything that went wrong with a call.

    Attributes:
        message: One sentence for a person.
        partial: The part that had arrived when a stream broke; None when nothing had.
    """

    def __init__(self, message: str, *, partial: "PartialCompletion | None" = None) -> None:
        """Keep the parts; see the class for their meaning."""
        super().__init__(message)
        self.message = message
        self.partial = partial


class ConnectionFailedError(BlockdraftError):
    """No blockdraft server responded: none listens, or the connection broke."""


class ClientClosedError(BlockdraftError):
    """The client was closed before the call."""


class DeadlineExceededError(BlockdraftError):
    """The deadline of the call passed; the message says which."""


class RequestCancelledError(BlockdraftError):
    """The call was cancelled."""


class InvalidOutputError(BlockdraftError):
    """The completion is not what `response_format` asks for: a limit or a stop sequence cut it off.

    Attributes:
        completion: The completion; its `finish_reason` is `length` if a limit cut it off.
    """

    def __init__(self, completion: "Completion", cause: Exception) -> None:
        """Say where the completion ended, and what is wrong with it."""
        super().__init__(
            f"the completion ended with finish reason {completion.finish_reason} after "
            f"{len(completion.token_ids)} tokens, and is not valid: {cause}"
        )
        self.completion = completion


class ApiError(BlockdraftError):
    """The server answered with an error.

    Attributes:
        code: The gRPC status code.
        reason: UPPER_SNAKE_CASE identifier of the cause, stable across versions; the name of
            the status code when the server gave none.
        metadata: The values the message mentions.
        request_id: Identifier of the request, if the server gave one.
        retry_after_seconds: When to try again, if that may help.
        field: Path of the request field at fault, if one is.
    """

    def __init__(
        self,
        message: str,
        *,
        code: "grpc.StatusCode",
        reason: str,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        field: str | None = None,
        partial: "PartialCompletion | None" = None,
    ) -> None:
        """Keep the parts; see the class for their meaning."""
        super().__init__(message, partial=partial)
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.field = field

    def __str__(self) -> str:
        """Return the reason and the message."""
        return f"{self.reason}: {self.message}"


class InvalidRequestError(ApiError):
    """The request is malformed, out of range or too large; sending it again will not help."""


class NotFoundError(ApiError):
    """The server serves no such model."""


class AuthenticationError(ApiError):
    """The API key is missing or wrong."""


class PermissionDeniedError(ApiError):
    """The API key may not do this."""


class OverloadedError(ApiError):
    """The server has too much to do; try again after `retry_after_seconds`."""


class UnavailableError(ApiError):
    """The server is loading, draining or has lost its verifier."""


class InternalServerError(ApiError):
    """The server failed; its log has the cause under `request_id`."""
