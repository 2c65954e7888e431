"""One word for how a request ended, for metrics and logs."""

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError


def outcome_of(end: inference_pb2.FinishReason.ValueType | BaseException) -> str:
    """Return "stop" or "length" for an answer, a status code such as "unavailable" for an error.

    Anything but a `ServiceError` or an ordinary exception is a cancellation: `CancelledError`
    and `GeneratorExit` are how asyncio tells that nobody waits any more.
    """
    if isinstance(end, ServiceError):
        return end.code.name.lower()
    if isinstance(end, Exception):
        return "internal"
    if isinstance(end, BaseException):
        return "cancelled"
    return inference_pb2.FinishReason.Name(end).removeprefix("FINISH_REASON_").lower()
