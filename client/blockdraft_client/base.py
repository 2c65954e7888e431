"""What `Client` and `AsyncClient` share: the server and how to call it. They add the waiting."""

import os
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from blockdraft_client.connection import (
    all_channel_options,
    channel_credentials,
    is_local,
    tls_config,
)
from blockdraft_client.errors import DeadlineExceededError
from blockdraft_client.options import (
    DEFAULT_KEEPALIVE,
    DEFAULT_RETRY,
    DEFAULT_TARGET,
    ApiKey,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
)
from blockdraft_client.params import Metadata

ChannelT = TypeVar("ChannelT")

# Pause between two looks at a server that answers but does not serve yet.
READY_POLL_SECONDS = 0.2


class ClientBase(Generic[ChannelT]):
    """Where the server is and how to call it: arguments first, then BLOCKDRAFT_* variables.

    Attributes:
        target: Address of the server.
    """

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
            OSError: If the file named by BLOCKDRAFT_CA_CERT cannot be read.
        """
        self.target = target or os.environ.get("BLOCKDRAFT_TARGET") or DEFAULT_TARGET
        self._api_key = (
            api_key if api_key is not None else os.environ.get("BLOCKDRAFT_API_KEY")
        ) or None
        exposed = self._api_key is not None and not is_local(self.target)
        config = tls_config(tls, encrypt=exposed)
        if exposed and config is None and channel is None:
            raise ValueError(f"an API key is not sent to {self.target} in plaintext; use TLS")
        self._credentials = None if config is None else channel_credentials(config)
        self._options = all_channel_options(retry, keepalive, config, channel_options)
        self._metadata = tuple(metadata)
        self._timeout = timeout
        self._given_channel = channel
        self._prepare()

    def _prepare(self) -> None:
        """Do what can be done before the first call."""

    def _told(self, timeout: float | None = None, metadata: Metadata = ()) -> dict[str, Any]:
        """Return deadline and metadata of one call, which win over those of every call."""
        key = self._api_key() if callable(self._api_key) else self._api_key
        authorization = (("authorization", f"Bearer {key}"),) if key else ()
        return {
            "timeout": timeout if timeout is not None else self._timeout,
            "metadata": (*authorization, *self._metadata, *metadata),
        }

    def _not_ready(self, timeout: float) -> DeadlineExceededError:
        return DeadlineExceededError(f"{self.target} was not ready within {timeout:g} s")
