"""The code that `Client` and `AsyncClient` share: the server and how to call it."""

import contextlib
import ipaddress
import json
import os
import re
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import grpc

from blockdraft_client.errors import ClientClosedError, DeadlineExceededError
from blockdraft_client.params import (
    DEFAULT_ADDRESS,
    DEFAULT_KEEPALIVE,
    DEFAULT_PORT,
    DEFAULT_RETRY,
    ApiKey,
    KeepAliveConfig,
    Metadata,
    RetryConfig,
    TLSConfig,
)
from blockdraft_runtime import version
from blockdraft_runtime.channel import MAX_MESSAGE_BYTES

ChannelT = TypeVar("ChannelT")

# Pause between two health checks of a server that responds but does not serve yet.
READY_POLL_SECONDS = 0.2
UNIX = ("unix:", "unix-abstract:")
# Thirty years; gRPC takes a deadline beyond its calendar for one that has passed.
_LONGEST_SECONDS = 1e9


class ClientBase(Generic[ChannelT]):
    """Address and call options of a server: arguments first, then BLOCKDRAFT_* variables.

    Attributes:
        address: Of the server, with its port.
    """

    def __init__(
        self,
        address: str | None = None,
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
            address: Of the server, such as `host`, `host:port` or `unix:/path`; the port is
                50051 where none is named. Default: BLOCKDRAFT_ADDRESS, or else `localhost`.
            api_key: The API key, or a function that is asked for it on every call. Default:
                BLOCKDRAFT_API_KEY. Never sent in plaintext beyond this machine.
            tls: Whether and how to encrypt. Default: on when BLOCKDRAFT_CA_CERT is set, or when
                there is an API key and the server is on another machine.
            timeout: Deadline of calls that name none, in seconds.
            retry: How to try again when the server is unavailable; None never does.
            keepalive: How to check a silent connection; None never does.
            metadata: Metadata of every call.
            channel_options: Options of the gRPC channel; they win over the client's own.
            channel: A channel to use instead of opening one; the caller closes it and is
                responsible for its encryption.

        `ValueError` if an API key would travel in plaintext beyond this machine, or the address is
        a URL. `OSError` if the file named by BLOCKDRAFT_CA_CERT cannot be read.
        """
        self.address = with_port(address or os.environ.get("BLOCKDRAFT_ADDRESS") or DEFAULT_ADDRESS)
        self._api_key = (
            api_key if api_key is not None else os.environ.get("BLOCKDRAFT_API_KEY")
        ) or None
        if isinstance(self._api_key, str):
            self._api_key = _sendable(self._api_key)
        exposed = self._api_key is not None and not is_local(self.address)
        config = _tls_config(tls, encrypt=exposed)
        if exposed and config is None and channel is None:
            raise ValueError(f"an API key is not sent to {self.address} in plaintext; use TLS")
        self._credentials = None
        if config is not None:
            self._credentials = grpc.ssl_channel_credentials(
                config.ca_certificate, config.client_key, config.client_certificate
            )
        self._options = all_channel_options(retry, keepalive, config, channel_options)
        self._metadata = tuple(metadata)
        self._timeout = timeout
        self._given_channel = channel
        self._closed = False
        self._prepare()

    def _prepare(self) -> None:
        """Open the connection, if it is to be open before the first call."""

    def _call_arguments(
        self, timeout: float | None = None, metadata: Metadata = ()
    ) -> dict[str, Any]:
        """Return deadline and metadata of one call, which win over those of every call.

        `ClientClosedError` if there are to be no more calls.
        """
        if self._closed:
            raise ClientClosedError("the client is closed")
        timeout = timeout if timeout is not None else self._timeout
        key = _sendable(self._api_key()) if callable(self._api_key) else self._api_key
        authorization = (("authorization", f"Bearer {key}"),) if key else ()
        return {
            "timeout": None if timeout is None else min(timeout, _LONGEST_SECONDS),
            "metadata": (*authorization, *self._metadata, *metadata),
        }

    def _deadline(self, timeout: float | None = None, **options: object) -> str:
        """Return the deadline of a call in words, for the error if it passes."""
        if timeout is not None:
            return f"the call's timeout of {timeout:g} s"
        if self._timeout is not None:
            return f"the client's timeout of {self._timeout:g} s"
        return "the server's own limit (the call has no timeout)"

    def _not_ready(self, timeout: float) -> DeadlineExceededError:
        return DeadlineExceededError(f"{self.address} was not ready within {timeout:g} s")


def _tls_config(tls: bool | TLSConfig | None, *, encrypt: bool) -> TLSConfig | None:
    """Return the certificates to use; None for plaintext."""
    if isinstance(tls, TLSConfig):
        return tls
    ca_path = os.environ.get("BLOCKDRAFT_CA_CERT") or None
    use_tls = tls if tls is not None else encrypt or ca_path is not None
    return TLSConfig.from_files(ca_certificate=ca_path) if use_tls else None


def all_channel_options(
    retry: RetryConfig | None,
    keepalive: KeepAliveConfig | None,
    tls: TLSConfig | None,
    overrides: Sequence[tuple[str, int | str]],
) -> tuple[tuple[str, int | str], ...]:
    """Return the options of a channel; `overrides` win over all others."""
    options: dict[str, int | str] = {
        "grpc.primary_user_agent": f"blockdraft-python/{version()}",
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
        # A server that loads its model refuses connections for a while: try again soon.
        "grpc.initial_reconnect_backoff_ms": 200,
        "grpc.max_reconnect_backoff_ms": 5_000,
    }
    if keepalive is not None:
        options["grpc.keepalive_time_ms"] = round(keepalive.interval_seconds * 1000)
        options["grpc.keepalive_timeout_ms"] = round(keepalive.timeout_seconds * 1000)
        # While gRPC waits for the response to a ping of its own, it sends none of these.
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
        "initialBackoff": f"{retry.initial_backoff_seconds:.9f}s",
        "maxBackoff": f"{retry.max_backoff_seconds:.9f}s",
        "backoffMultiplier": retry.backoff_multiplier,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    service = {"service": "blockdraft.v1.InferenceService"}
    return {"methodConfig": [{"name": [service], "retryPolicy": policy}]}


def with_port(address: str) -> str:
    """Return an address with the port that servers listen on where it names none."""
    if re.match("https?:", address):
        raise ValueError(f"an address is host:port, of the gRPC API, got {address!r}")
    if address.startswith(UNIX):
        return address
    scheme, addresses = _addresses(address)
    return scheme + ",".join(map(_with_port, addresses))


def _with_port(address: str) -> str:
    if re.fullmatch(r"[^:/\[\]]+|\[[^]]+\]", address):
        return f"{address}:{DEFAULT_PORT}"
    with contextlib.suppress(ValueError):
        return f"[{ipaddress.IPv6Address(address)}]:{DEFAULT_PORT}"
    return address


def _addresses(address: str) -> tuple[str, list[str]]:
    """Return the scheme of an address and its list, which has several items in `ipv4:a,b`."""
    listed = re.sub(r"^(dns:(//[^/]*/)?|ipv[46]:)", "", address)
    return address.removesuffix(listed), listed.split(",")


def is_local(address: str) -> bool:
    """Return whether calls to `address` cannot leave this machine.

    Unix sockets and loopback addresses qualify, such as `localhost:50051`, `unix:/path` or
    `ipv4:127.0.0.1:50051`; an address that is not understood does not.
    """
    if address.startswith(UNIX):
        return True
    return all(map(_is_loopback, map(_host, _addresses(address)[1])))


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


def _sendable(key: str) -> str:
    """Return an API key without the white space around it, such as the line break of a file.

    `ValueError`, which does not quote the key, if it cannot be sent.
    """
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("an API key must be printable ASCII, without line breaks")
    return key
