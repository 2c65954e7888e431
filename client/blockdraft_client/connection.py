"""What gRPC is told of a connection: its certificates and options; and what stays on this host."""

import ipaddress
import json
import os
import re
from collections.abc import Sequence

import grpc

from blockdraft_client.options import KeepAliveConfig, RetryConfig, TLSConfig
from blockdraft_runtime import version

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

ChannelOptions = tuple[tuple[str, int | str], ...]


def tls_config(tls: bool | TLSConfig | None, *, encrypt: bool) -> TLSConfig | None:
    """Return the certificates to use; None for plaintext.

    Raises:
        OSError: If the file named by BLOCKDRAFT_CA_CERT cannot be read.
    """
    if isinstance(tls, TLSConfig):
        return tls
    ca_path = os.environ.get("BLOCKDRAFT_CA_CERT") or None
    wanted = tls if tls is not None else encrypt or ca_path is not None
    return TLSConfig.from_files(ca_certificate=ca_path) if wanted else None


def channel_credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    """Return the credentials of an encrypted channel."""
    return grpc.ssl_channel_credentials(tls.ca_certificate, tls.client_key, tls.client_certificate)


def all_channel_options(
    retry: RetryConfig | None,
    keepalive: KeepAliveConfig | None,
    tls: TLSConfig | None,
    overrides: Sequence[tuple[str, int | str]],
) -> ChannelOptions:
    """Return the options of a channel; `overrides` win over all others."""
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


def is_local(target: str) -> bool:
    """Return whether calls to `target` cannot leave this machine.

    Unix sockets and loopback addresses qualify, such as `localhost:50051`, `unix:/path` or
    `ipv4:127.0.0.1:50051`; whatever is not understood does not.
    """
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    if target.startswith("dns:"):
        target = target.removeprefix("dns:").rpartition("/")[2]
    addresses = re.sub(r"^ipv[46]:", "", target).split(",")
    return all(_is_loopback(_host(address)) for address in addresses)


def _host(address: str) -> str:
    bracketed = re.fullmatch(r"\[(.*)\](:\d+)?", address)
    if bracketed:
        return bracketed[1]
    # More than one colon is an IPv6 address without a port.
    return address.partition(":")[0] if address.count(":") == 1 else address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
