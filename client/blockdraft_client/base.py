"""What `Client` and `AsyncClient` share: their settings. They add the waiting."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from blockdraft_client.connection.endpoint import Endpoint, Metadata
from blockdraft_client.connection.options import (
    DEFAULT_KEEPALIVE,
    DEFAULT_RETRY,
    ApiKey,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
)
from blockdraft_client.errors import DeadlineExceededError

ChannelT = TypeVar("ChannelT")

# Pause between two looks at a server that answers but does not serve yet.
READY_POLL_SECONDS = 0.2


class ClientBase(Generic[ChannelT]):
    """Where the server is and how to call it."""

    def __init__(
        self,
        target: str | None = None,
        *,
        api_key: ApiKey | None = None,
        tls: bool | TLSConfig | None = None,
        timeout: float | None = None,
        retry: RetryConfig | None = DEFAULT_RETRY,
        keepalive: KeepAliveConfig | None = DEFAULT_KEEPALIVE,
        metadata: Metadata = (),
        channel_options: Sequence[tuple[str, int | str]] = (),
        channel: ChannelT | None = None,
    ) -> None:
        """Prepare the connection.

        Args:
            target: Address of the server, such as `host:port` or `unix:/path`. Default:
                BLOCKDRAFT_TARGET, or else `localhost:50051`.
            api_key: The API key, or a function that is asked for it on every call. Default:
                BLOCKDRAFT_API_KEY. Never sent in plaintext beyond this machine.
            tls: Whether and how to encrypt. Default: on when BLOCKDRAFT_CA_CERT is set, or when
                there is an API key and the server is on another machine.
            timeout: Deadline of calls that name none, in seconds.
            retry: How to try again when the server is unavailable; None never does.
            keepalive: How to check a silent connection; None never does.
            metadata: Metadata of every call.
            channel_options: Options of the gRPC channel; they win over the client's own.
            channel: A channel to use instead of opening one; the caller closes it and answers
                for its encryption.

        Raises:
            ValueError: If an API key would travel in plaintext beyond this machine.
        """
        self._endpoint = Endpoint.resolve(
            target,
            api_key=api_key,
            tls=tls,
            timeout=timeout,
            retry=retry,
            keepalive=keepalive,
            metadata=metadata,
            overrides=channel_options,
            has_channel=channel is not None,
        )
        self._given_channel = channel
        self._prepare()

    def _prepare(self) -> None:
        """Do what can be done before the first call."""

    @property
    def target(self) -> str:
        """Address of the server."""
        return self._endpoint.target

    def _not_ready(self, timeout: float) -> DeadlineExceededError:
        return DeadlineExceededError(f"{self.target} was not ready within {timeout:g} s")
