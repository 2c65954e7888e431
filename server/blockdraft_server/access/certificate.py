"""The certificate of the public port: read, checked, and exchanged while the server runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from blockdraft_runtime.settings.server import TlsSettings


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a TLS handshake needs, in PEM.

    Attributes:
        chain: The certificates, the server's own first.
        key: The private key.
        client_authorities: Who may have signed callers' certificates; None asks for none.
        expires: When the first of the chain expires, in seconds since 1970.
    """

    chain: bytes
    key: bytes
    client_authorities: bytes | None
    expires: float


def read_certificate(tls: TlsSettings) -> Certificate:
    """Read and check a certificate.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If one is malformed, if key and certificate do not belong together, as halfway
            through an exchange, or if the certificate has expired.
    """
    chain, key = tls.certificate.read_bytes(), tls.key.read_bytes()
    authorities = None if tls.client_authorities is None else tls.client_authorities.read_bytes()
    certificates = x509.load_pem_x509_certificates(chain)
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError as error:
        raise ValueError(f"{tls.key} is encrypted") from error
    if private.public_key() != certificates[0].public_key():
        raise ValueError(f"{tls.key} is not the key of the first certificate in {tls.certificate}")
    expiry = min(one.not_valid_after_utc for one in certificates)
    if expiry.timestamp() <= time.time():
        raise ValueError(f"{tls.certificate} has expired on {expiry:%Y-%m-%d at %H:%M UTC}")
    if authorities is not None:
        x509.load_pem_x509_certificates(authorities)
    return Certificate(chain, key, authorities, expiry.timestamp())


def server_credentials(current: Callable[[], Certificate]) -> grpc.ServerCredentials:
    """Return credentials that give each new connection what `current` returns then."""
    used = current()

    # gRPC asks before every handshake, on a thread of its own.
    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        found = current()
        if found is used:
            return None
        used = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        changed,  # type: ignore[arg-type]  # its stubs do not know that None means no change
        require_client_authentication=used.client_authorities is not None,
    )


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], certificate.client_authorities
    )
