"""The client SDK and the `blockdraft` command.

    from blockdraft import Client

    with Client("localhost") as client:
        print(client.generate("Once upon a time", max_tokens=32).text)

Read `params` and `constraints` (the options of a request), `results` and `usage` (the response)
and `errors`; then `client` and `stream`, and the same for asyncio in `aio`: they only call and
wait. Both use `base`, `requests` (values as messages), `parsing` (texts as values) and
`error_mapping` (a failed call as an exception). `cli/` is the command. Nothing here imports the
packages that serve, nor numpy or JAX: the client is installed without them.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockdraft_client.aio import AsyncClient, AsyncStream
    from blockdraft_client.client import Client
    from blockdraft_client.constraints import (
        FreeText,
        OutputConstraint,
        StructuralTag,
        StructuralTags,
    )
    from blockdraft_client.errors import (
        ApiError,
        AuthenticationError,
        BlockdraftError,
        ClientClosedError,
        ConnectionFailedError,
        DeadlineExceededError,
        InternalServerError,
        InvalidOutputError,
        InvalidRequestError,
        NotFoundError,
        OverloadedError,
        PermissionDeniedError,
        RequestCancelledError,
        UnavailableError,
    )
    from blockdraft_client.model_info import (
        DrafterInfo,
        DraftingInfo,
        DraftingState,
        ExactnessInfo,
        ModelInfo,
        SourceCounts,
    )
    from blockdraft_client.params import (
        ChatMessage,
        KeepAliveConfig,
        Prompt,
        RetryConfig,
        SamplingParams,
        SpeculationParams,
        TLSConfig,
    )
    from blockdraft_client.results import (
        Chunk,
        Completion,
        FinishReason,
        HealthStatus,
        PartialCompletion,
        Tokenization,
        TokenLogProb,
        TokenLogProbs,
        TokenSource,
    )
    from blockdraft_client.stream import Stream
    from blockdraft_client.usage import StepSeconds, Usage

    __version__: str

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncStream",
    "AuthenticationError",
    "BlockdraftError",
    "ChatMessage",
    "Chunk",
    "Client",
    "ClientClosedError",
    "Completion",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "DrafterInfo",
    "DraftingInfo",
    "DraftingState",
    "ExactnessInfo",
    "FinishReason",
    "FreeText",
    "HealthStatus",
    "InternalServerError",
    "InvalidOutputError",
    "InvalidRequestError",
    "KeepAliveConfig",
    "ModelInfo",
    "NotFoundError",
    "OutputConstraint",
    "OverloadedError",
    "PartialCompletion",
    "PermissionDeniedError",
    "Prompt",
    "RequestCancelledError",
    "RetryConfig",
    "SamplingParams",
    "SourceCounts",
    "SpeculationParams",
    "StepSeconds",
    "Stream",
    "StructuralTag",
    "StructuralTags",
    "TLSConfig",
    "TokenLogProb",
    "TokenLogProbs",
    "TokenSource",
    "Tokenization",
    "UnavailableError",
    "Usage",
]

# Where the names of `__all__` are defined.
_MODULES = ("client", "aio", "constraints", "errors", "params", "results", "model_info", "usage")

if not TYPE_CHECKING:
    # A type checker reads the imports above; this would hide a misspelt name from it.
    def __getattr__(name: str) -> object:
        # Imported on first use: `blockdraft --help` must not wait for grpc and protobuf.
        if name in __all__:
            for module in _MODULES:
                names = vars(importlib.import_module(f"{__name__}.{module}"))
                if name in names:
                    return names[name]
        if name == "__version__":
            return importlib.import_module("blockdraft_runtime").version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
