"""The options and credentials of a channel, as gRPC wants to hear them."""

import json
from collections.abc import Sequence

import grpc

from blockdraft_client.connection.options import KeepAliveConfig, RetryConfig, TLSConfig
from blockdraft_client.version import version

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

ChannelOptions = tuple[tuple[str, int | str], ...]


def channel_credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    """Return the credentials of an encrypted channel."""
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca_certificate,
        private_key=tls.client_key,
        certificate_chain=tls.client_certificate,
    )


def channel_options(
    retry: RetryConfig | None,
    keepalive: KeepAliveConfig | None,
    tls: TLSConfig | None,
    overrides: Sequence[tuple[str, int | str]],
) -> ChannelOptions:
    """Return the options of a channel.

    Args:
        retry: How to try again; None never does.
        keepalive: How to check a silent connection; None never does.
        tls: The certificates; None for plaintext.
        overrides: Options that win over all others.
    """
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
        # While gRPC waits for the answer to a ping of its own, it sends none of these.
        options["grpc.http2.ping_timeout_ms"] = round(keepalive.timeout_seconds * 1000)
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
