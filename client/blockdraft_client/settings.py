"""What a client was told, made complete: arguments first, then BLOCKDRAFT_* variables."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from blockdraft_client.address import is_local
from blockdraft_client.config import (
    DEFAULT_TARGET,
    ApiKey,
    ChannelOptions,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
)
from blockdraft_client.version import version

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ClientSettings:
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
        channel_options: Sequence[tuple[str, int | str]],
        has_channel: bool,
    ) -> "ClientSettings":
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
            credentials=_credentials(config) if config is not None else None,
            options=_channel_options(retry, keepalive, config, channel_options),
            api_key=key,
            metadata=tuple(metadata),
            timeout=timeout,
        )

    def call_metadata(self, extra: Metadata) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one call."""
        key = self.api_key() if callable(self.api_key) else self.api_key
        authorization = (("authorization", f"Bearer {key}"),) if key else ()
        return (*authorization, *self.metadata, *extra)

    def call_timeout(self, timeout: float | None) -> float | None:
        """Return the deadline of one call in seconds."""
        return timeout if timeout is not None else self.timeout


def _tls_config(tls: bool | TLSConfig | None, *, encrypt: bool) -> TLSConfig | None:
    if isinstance(tls, TLSConfig):
        return tls
    ca_path = os.environ.get("BLOCKDRAFT_CA_CERT") or None
    wanted = tls if tls is not None else encrypt or ca_path is not None
    return TLSConfig.from_files(ca_certificate=ca_path) if wanted else None


def _credentials(config: TLSConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=config.ca_certificate,
        private_key=config.client_key,
        certificate_chain=config.client_certificate,
    )


def _channel_options(
    retry: RetryConfig | None,
    keepalive: KeepAliveConfig | None,
    tls: TLSConfig | None,
    overrides: Sequence[tuple[str, int | str]],
) -> ChannelOptions:
    options: dict[str, int | str] = {
        "grpc.primary_user_agent": f"blockdraft-python/{version()}",
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
        # A server that loads its model refuses connections for a while: look again soon.
        "grpc.initial_reconnect_backoff_ms": 200,
        "grpc.max_reconnect_backoff_ms": 5_000,
    }
    if keepalive is not None:
        options["grpc.keepalive_time_ms"] = round(keepalive.interval_seconds * 1000)
        options["grpc.keepalive_timeout_ms"] = round(keepalive.timeout_seconds * 1000)
        options["grpc.http2.max_pings_without_data"] = 0
    if retry is not None and retry.max_attempts > 1:
        options["grpc.service_config"] = json.dumps(_service_config(retry))
    if tls is not None and tls.server_name is not None:
        options["grpc.ssl_target_name_override"] = tls.server_name
    return tuple({**options, **dict(overrides)}.items())


def _service_config(retry: RetryConfig) -> dict[str, object]:
    # Deadlines are set per call: grpc's Python core fires those of the service config early.
    policy = {
        "maxAttempts": retry.max_attempts,
        "initialBackoff": f"{retry.initial_backoff_seconds}s",
        "maxBackoff": f"{retry.max_backoff_seconds}s",
        "backoffMultiplier": retry.backoff_multiplier,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    service = {"service": "blockdraft.v1.InferenceService"}
    return {"methodConfig": [{"name": [service], "retryPolicy": policy}]}
