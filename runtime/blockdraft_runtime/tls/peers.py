"""Mutual TLS between the processes of a service: each shows a certificate and demands one.

Only between hosts: who may open a unix socket is what the modes of its folder say.
"""

from collections.abc import Sequence

import grpc

from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_runtime.reloaded import Reloaded
from blockdraft_runtime.settings.peer_tls import PeerTlsSettings
from blockdraft_runtime.tls.certificate import Certificate, read_certificate, server_credentials


class OtherProcess:
    """A process of the service on another host: channels to it show the certificates of now."""

    def __init__(self, address: str, tls: PeerTlsSettings | None, host: str | None = None) -> None:
        """Read the certificates.

        Args:
            address: Where the other process listens.
            tls: The certificates; None for plaintext.
            host: Whom its certificate has to be for; None for the host of the address.

        Raises:
            UnusableFilesError: If the certificates cannot be used.
        """
        self._address = address
        self._certificate = _certificate(address, tls)
        self._options: Sequence[tuple[str, int | str]] = CLIENT_OPTIONS
        if host is not None and self._certificate is not None:
            self._options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", host))

    def renewed(self) -> bool:
        """Return whether there are other certificates than at the last look.

        A channel connects again with those that it was opened with: it has to be opened anew.
        """
        return self._certificate is not None and self._certificate.refresh()

    def channel(self) -> grpc.Channel:
        """Return a channel to the process."""
        if self._certificate is None:
            return grpc.insecure_channel(self._address, options=self._options)
        credentials = _channel_credentials(self._certificate.value)
        return grpc.secure_channel(self._address, credentials, options=self._options)

    def aio_channel(self) -> grpc.aio.Channel:
        """Return a channel to the process for asyncio."""
        if self._certificate is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        credentials = _channel_credentials(self._certificate.value)
        return grpc.aio.secure_channel(self._address, credentials, options=self._options)


def peer_server_credentials(
    address: str, tls: PeerTlsSettings | None
) -> grpc.ServerCredentials | None:
    """Return the credentials of a port that only processes of the service may call.

    Each new connection gets what the files say then.

    Args:
        address: Where it is.
        tls: The certificates; None for plaintext.

    Raises:
        UnusableFilesError: If they cannot be used.
    """
    certificate = _certificate(address, tls)
    if certificate is None:
        return None

    def current() -> Certificate:
        certificate.refresh()
        return certificate.value

    return server_credentials(current)


def _certificate(address: str, tls: PeerTlsSettings | None) -> Reloaded[Certificate] | None:
    if tls is None or address.startswith(("unix:", "unix-abstract:")):
        return None
    files = tls.certificate, tls.key, tls.authorities
    what = "the certificate of --peer-tls-cert"
    return Reloaded(what, files, lambda: read_certificate(*files))


def _channel_credentials(certificate: Certificate) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=certificate.authorities,
        private_key=certificate.key,
        certificate_chain=certificate.chain,
    )
