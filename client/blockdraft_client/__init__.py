"""The client SDK and the `blockdraft` command.

from blockdraft_client import Client

with Client("localhost:50051") as client:
print(client.generate("Once upon a time", max_output_tokens=32).text)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockdraft_client.aio import AsyncClient
    from blockdraft_client.aio_stream import AsyncStream
    from blockdraft_client.client import Client
    from blockdraft_client.config import KeepAliveConfig, RetryConfig, TLSConfig
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
    from blockdraft_client.inspection import DrafterInfo, HealthStatus, ModelInfo, Tokenization
    from blockdraft_client.params import ChatMessage, Prompt, SamplingParams, SpeculationParams
    from blockdraft_client.results import (
        Chunk,
        Completion,
        FinishReason,
        PartialCompletion,
        TokenLogProb,
        TokenLogProbs,
    )
    from blockdraft_client.stream import Stream
    from blockdraft_client.usage import StepSeconds, Usage

_MODULES = {
    "aio": ("AsyncClient",),
    "aio_stream": ("AsyncStream",),
    "client": ("Client",),
    "config": ("KeepAliveConfig", "RetryConfig", "TLSConfig"),
    "errors": (
        "ApiError",
        "AuthenticationError",
        "BlockdraftError",
        "ConnectionFailedError",
        "DeadlineExceededError",
        "InternalServerError",
        "InvalidRequestError",
        "NotFoundError",
        "OverloadedError",
        "PermissionDeniedError",
        "RequestCancelledError",
        "UnavailableError",
    ),
    "inspection": ("DrafterInfo", "HealthStatus", "ModelInfo", "Tokenization"),
    "params": ("ChatMessage", "Prompt", "SamplingParams", "SpeculationParams"),
    "results": (
        "Chunk",
        "Completion",
        "FinishReason",
        "PartialCompletion",
        "TokenLogProb",
        "TokenLogProbs",
    ),
    "stream": ("Stream",),
    "usage": ("StepSeconds", "Usage"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncStream",
    "AuthenticationError",
    "BlockdraftError",
    "ChatMessage",
    "Chunk",
    "Client",
    "Completion",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "DrafterInfo",
    "FinishReason",
    "HealthStatus",
    "InternalServerError",
    "InvalidRequestError",
    "KeepAliveConfig",
    "ModelInfo",
    "NotFoundError",
    "OverloadedError",
    "PartialCompletion",
    "PermissionDeniedError",
    "Prompt",
    "RequestCancelledError",
    "RetryConfig",
    "SamplingParams",
    "SpeculationParams",
    "StepSeconds",
    "Stream",
    "TLSConfig",
    "TokenLogProb",
    "TokenLogProbs",
    "Tokenization",
    "UnavailableError",
    "Usage",
]


def __getattr__(name: str) -> object:
    # Imported on first use: `blockdraft --help` must not wait for grpc and protobuf.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
