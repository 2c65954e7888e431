"""A server and how to call it, made complete: arguments first, then BLOCKDRAFT_* variables."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import grpc

from blockdraft_client.connection.address import is_local
from blockdraft_client.connection.channel import (
    ChannelOptions,
    channel_credentials,
    channel_options,
)
from blockdraft_client.connection.options import (
    DEFAULT_TARGET,
    ApiKey,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
)

Metadata = Sequence[tuple[str, str]]


class CallOptions(TypedDict):
    """What goes with every call: its deadline in seconds, and its metadata."""

    timeout: float | None
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Everything both clients need to open a channel and to start a call.

    Attributes:
        target: Address of the server.
        credentials: TLS credentials; None means plaintext.
        options: Options of the channel.
        api_key: The API key, or a function that returns it; None sends none.
        metadata: Metadata of every call.
        timeout: Deadline of calls that name none, in seconds; None sets none.
    """

    target: str
    credentials: grpc.ChannelCredentials | None
    options: ChannelOptions
    api_key: ApiKey | None = field(repr=False)
    metadata: tuple[tuple[str, str], ...]
    timeout: float | None

    @classmethod
    def resolve(
        cls,
        target: str | None,
        *,
        api_key: ApiKey | None,
        tls: bool | TLSConfig | None,
        timeout: float | None,
        retry: RetryConfig | None,
        keepalive: KeepAliveConfig | None,
        metadata: Metadata,
        overrides: Sequence[tuple[str, int | str]],
        has_channel: bool,
    ) -> "Endpoint":
        """Fill in what was left out.

        Raises:
            ValueError: If an API key would travel in plaintext beyond this machine.
            OSError: If the file named by BLOCKDRAFT_CA_CERT cannot be read.
        """
        target = target or os.environ.get("BLOCKDRAFT_TARGET") or DEFAULT_TARGET
        key = api_key if api_key is not None else os.environ.get("BLOCKDRAFT_API_KEY")
        key = key or None
        config = _tls_config(tls, encrypt=key is not None and not is_local(target))
        if key is not None and config is None and not has_channel and not is_local(target):
            raise ValueError(f"an API key is not sent to {target} in plaintext; use TLS")
        return cls(
            target=target,
            credentials=channel_credentials(config) if config is not None else None,
            options=channel_options(retry, keepalive, config, overrides),
            api_key=key,
            metadata=tuple(metadata),
            timeout=timeout,
        )

    def call_options(self, timeout: float | None, metadata: Metadata) -> CallOptions:
        """Return deadline and metadata of one call, which win over those of every call."""
        key = self.api_key() if callable(self.api_key) else self.api_key
        authorization = (("authorization", f"Bearer {key}"),) if key else ()
        return {
            "timeout": timeout if timeout is not None else self.timeout,
            "metadata": (*authorization, *self.metadata, *metadata),
        }


def _tls_config(tls: bool | TLSConfig | None, *, encrypt: bool) -> TLSConfig | None:
    if isinstance(tls, TLSConfig):
        return tls
    ca_path = os.environ.get("BLOCKDRAFT_CA_CERT") or None
    wanted = tls if tls is not None else encrypt or ca_path is not None
    return TLSConfig.from_files(ca_certificate=ca_path) if wanted else None
