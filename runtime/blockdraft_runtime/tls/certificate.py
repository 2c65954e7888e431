"""A certificate: read, checked, and exchanged while a port is open."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a TLS handshake needs, in PEM.

    Attributes:
        chain: The certificates, the process's own first.
        key: The private key.
        authorities: Who may have signed the other side's certificate; None asks for none.
        expires: When the first of the chain expires, in seconds since 1970.
    """

    chain: bytes
    key: bytes
    authorities: bytes | None
    expires: float


def read_certificate(
    chain_file: Path, key_file: Path, authorities_file: Path | None
) -> Certificate:
    """Read and check a certificate.

    Args:
        chain_file: The certificates in PEM, the process's own first.
        key_file: Its private key.
        authorities_file: Certificates of those who may have signed the other side's; None asks it
            for none.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If one is malformed, if key and certificate do not belong together, as halfway
            through an exchange, or if the certificate has expired.
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
    expiry = min(one.not_valid_after_utc for one in certificates)
    if expiry.timestamp() <= time.time():
        raise ValueError(f"{chain_file} has expired on {expiry:%Y-%m-%d at %H:%M UTC}")
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
        require_client_authentication=used.authorities is not None,
    )


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], certificate.authorities
    )
