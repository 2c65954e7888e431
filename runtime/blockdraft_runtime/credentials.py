"""Keys and certificates, read again when their files change, also while a port is open.

Mutual TLS is only between hosts: the modes of its folder decide which users may open a unix socket.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from blockdraft_runtime.channel import CLIENT_OPTIONS
from blockdraft_runtime.settings.process import PeerTlsSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")


class UnusableFilesError(ValueError):
    """Files of keys or of a certificate cannot be used."""


class Reloaded(Generic[T]):
    """A value read from files. While they cannot be used, the value before stays in force.

    Attributes:
        value: The value of the last successful read.
    """

    def __init__(self, description: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files; messages name their contents by `description`. Links are followed.

        `UnusableFilesError` if `read` raises OSError or ValueError.
        """
        self._description = description
        self._paths = tuple(paths)
        self._read = read
        self._last_state = self._state()
        self.value = self._value()

    def refresh(self) -> bool:
        """Read the files if they have changed; return whether there is a new value."""
        state = self._state()
        if state == self._last_state:
            return False
        # Set before reading: a change during the read must count as one the next time.
        self._last_state = state
        try:
            self.value = self._value()
        except UnusableFilesError as error:
            logger.error("%s; what was read before stays in force", error)
            return False
        logger.info("%s: read again", self._description)
        return True

    async def keep_current(self, seconds: float, on_change: Callable[[], None]) -> None:
        """Check the files every `seconds`, for ever; call `on_change` after each new value."""
        while True:
            await asyncio.sleep(seconds)
            try:
                if await asyncio.to_thread(self.refresh):
                    on_change()
            except Exception:
                # An error must not end the checks.
                logger.exception("%s: could not look for changes", self._description)

    def _value(self) -> T:
        try:
            return self._read()
        except (OSError, ValueError) as error:
            raise UnusableFilesError(f"{self._description}: {error}") from error

    def _state(self) -> tuple[object, ...]:
        """Return a value that differs after every change of the files."""
        states: list[object] = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError as error:
                states.append(error.errno)
            else:
                states.append(
                    (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                )
        return tuple(states)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The PEM texts that a TLS handshake needs."""

    chain: bytes  # the certificates, the process's own first
    key: bytes  # the private key
    # Authorities that may have signed the other side's certificate; None asks for none.
    authorities: bytes | None
    expires: float  # earliest expiry of the chain, in seconds since 1970


def read_certificate(
    chain_file: Path, key_file: Path, authorities_file: Path | None
) -> Certificate:
    """Read and check a certificate; the files hold the texts of `Certificate`.

    `OSError` if a file cannot be read; `ValueError` if one is malformed, if key and certificate do
    not belong together, as halfway through a rotation, or if the certificate has expired.
    """
    chain, key = chain_file.read_bytes(), key_file.read_bytes()
    authorities = None if authorities_file is None else authorities_file.read_bytes()
    certificates = x509.load_pem_x509_certificates(chain)
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError as error:
        raise ValueError(f"{key_file} is encrypted") from error
    if private.public_key() != certificates[0].public_key():
        raise ValueError(f"{key_file} is not the key of the first certificate in {chain_file}")
    expiry = min(certificate.not_valid_after_utc for certificate in certificates)
    if expiry.timestamp() <= time.time():
        raise ValueError(f"{chain_file} has expired on {expiry:%Y-%m-%d at %H:%M UTC}")
    if authorities is not None:
        x509.load_pem_x509_certificates(authorities)
    return Certificate(chain, key, authorities, expiry.timestamp())


def server_credentials(current: Callable[[], Certificate]) -> grpc.ServerCredentials:
    """Return credentials that call `current` for the certificate of each new connection."""
    used = current()

    # gRPC asks before every handshake, on a thread of its own.
    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        certificate = current()
        if certificate is used:
            return None
        used = certificate
        return _configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        changed,  # type: ignore[arg-type]  # its stubs do not know that None means no change
        require_client_authentication=used.authorities is not None,
    )


def peer_server_credentials(
    address: str, tls: PeerTlsSettings | None
) -> grpc.ServerCredentials | None:
    """Return the credentials of a port for processes of the service; None for plaintext.

    Each new connection gets the current certificate. `UnusableFilesError` if it cannot be read.
    """
    certificate = _peer_certificate(address, tls)
    if certificate is None:
        return None

    def current() -> Certificate:
        certificate.refresh()
        return certificate.value

    return server_credentials(current)


class OtherProcess:
    """A process of the service on another host; channels to it show the current certificate."""

    def __init__(self, address: str, tls: PeerTlsSettings | None, host: str | None = None) -> None:
        """Read the certificates; `UnusableFilesError` if they cannot be used.

        The other process's certificate has to be for `host`; None: the host of the address.
        """
        self._address = address
        self._certificate = _peer_certificate(address, tls)
        self._options: Sequence[tuple[str, int | str]] = CLIENT_OPTIONS
        if host is not None and self._certificate is not None:
            self._options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", host))

    def renewed(self) -> bool:
        """Return whether the certificates have changed since the last check.

        A channel reconnects with the certificates it was opened with: it has to be opened anew.
        """
        return self._certificate is not None and self._certificate.refresh()

    def channel(self) -> grpc.Channel:
        """Return a channel to the process."""
        channel: grpc.Channel = self._open(grpc)
        return channel

    def aio_channel(self) -> grpc.aio.Channel:
        """Return a channel to the process for asyncio."""
        channel: grpc.aio.Channel = self._open(grpc.aio)
        return channel

    def _open(self, module: Any) -> Any:
        if self._certificate is None:
            return module.insecure_channel(self._address, options=self._options)
        shown = self._certificate.value
        credentials = grpc.ssl_channel_credentials(shown.authorities, shown.key, shown.chain)
        return module.secure_channel(self._address, credentials, options=self._options)


def _peer_certificate(address: str, tls: PeerTlsSettings | None) -> Reloaded[Certificate] | None:
    if tls is None or address.startswith(("unix:", "unix-abstract:")):
        return None
    files = tls.certificate, tls.key, tls.authorities
    description = "the certificate of --peer-tls-cert"
    return Reloaded(description, files, lambda: read_certificate(*files))


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], certificate.authorities
    )
