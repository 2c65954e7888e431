"""How processes on several hosts know each other."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft_runtime.configuration.definition import required


@dataclass(frozen=True, slots=True)
class PeerTlsSettings:
    """Certificates between server, verifier and drafter; read again when they change."""

    certificate: Path = required(
        "PEM certificate chain by which the service's other processes know this one; needs "
        "--peer-tls-key and --peer-tls-ca; unix sockets stay as they are",
        flag="peer-tls-cert",
        metavar="FILE",
    )
    key: Path = required("PEM private key of --peer-tls-cert", flag="peer-tls-key", metavar="FILE")
    authorities: Path = required(
        "PEM certificates of authorities, one of which has to have signed those of the other "
        "processes",
        flag="peer-tls-ca",
        metavar="FILE",
    )
