"""Mutual TLS between the processes of a service: each shows a certificate and demands one.

Only between hosts: who may open a unix socket is what the modes of its folder say.
"""

import grpc

from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_runtime.settings.peer_tls import PeerTlsSettings


def peer_channel(address: str, tls: PeerTlsSettings | None) -> grpc.Channel:
    """Return a channel to another process of the service.

    Args:
        address: Where it listens. Its certificate has to be for this host.
        tls: The certificates; None for plaintext.

    Raises:
        OSError: If they cannot be read.
    """
    if tls is None or _is_local(address):
        return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.secure_channel(address, _channel_credentials(tls), options=CLIENT_OPTIONS)


def aio_peer_channel(
    address: str, tls: PeerTlsSettings | None, host: str | None = None
) -> grpc.aio.Channel:
    """Return the same channel for asyncio; see `peer_channel`.

    Args:
        address: Where the other process listens.
        tls: The certificates; None for plaintext.
        host: Whom its certificate has to be for; None for the host of the address.

    Raises:
        OSError: If the certificates cannot be read.
    """
    if tls is None or _is_local(address):
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    options: tuple[tuple[str, int | str], ...] = CLIENT_OPTIONS
    if host is not None:
        options = (*options, ("grpc.ssl_target_name_override", host))
    return grpc.aio.secure_channel(address, _channel_credentials(tls), options=options)


def peer_server_credentials(
    address: str, tls: PeerTlsSettings | None
) -> grpc.ServerCredentials | None:
    """Return the credentials of a port that only processes of the service may call.

    Args:
        address: Where it is.
        tls: The certificates; None for plaintext.

    Raises:
        OSError: If they cannot be read.
    """
    if tls is None or _is_local(address):
        return None
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=tls.authorities.read_bytes(),
        require_client_auth=True,
    )


def _channel_credentials(tls: PeerTlsSettings) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.authorities.read_bytes(),
        private_key=tls.key.read_bytes(),
        certificate_chain=tls.certificate.read_bytes(),
    )


def _is_local(address: str) -> bool:
    return address.startswith(("unix:", "unix-abstract:"))
