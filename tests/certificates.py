"""Authorities and certificates, made for a test."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blockdraft_runtime.settings.process import PeerTlsSettings


@dataclass(frozen=True)
class Pem:
    """A certificate and its key."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> None:
        (folder / "cert.pem").write_bytes(self.certificate)
        (folder / "key.pem").write_bytes(self.key)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str) -> None:
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = self._sign(self._name, self._key, days=2, authority=True)
        self.certificate = made.public_bytes(Encoding.PEM)

    def issue(self, name: str = "localhost", days: float = 2) -> Pem:
        """Return a certificate that is valid for so many days from a week ago, or from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, days, authority=False)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Pem(certificate.public_bytes(Encoding.PEM), private)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        days: float,
        *,
        authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        [common] = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=7))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(str(common.value))]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


def write_peer(
    folder: Path, issuer: Authority, trusted: Authority | None = None, name: str = "localhost"
) -> PeerTlsSettings:
    """Write what a process shows to others of the service, and whom it trusts: the issuer."""
    folder.mkdir(exist_ok=True)
    issuer.issue(name).write(folder)
    (folder / "ca.pem").write_bytes((trusted or issuer).certificate)
    return PeerTlsSettings(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
