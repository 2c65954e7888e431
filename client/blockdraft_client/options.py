"""What a caller may set of a connection: encryption, retries, keep-alive. Free of gRPC."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEFAULT_TARGET = "localhost:50051"

# The server hangs up on clients that ping a silent stream more often than this.
MIN_KEEPALIVE_INTERVAL_SECONDS = 10.0

# grpc silently lowers a larger number to this.
MAX_ATTEMPTS = 5

ApiKey = str | Callable[[], str]
"""An API key, or a function that is asked for it on every call and must answer at once."""


@dataclass(frozen=True, slots=True)
class TLSConfig:
    """Certificates of an encrypted connection, all PEM.

    Attributes:
        ca_certificate: Certificates to trust; None trusts the system's authorities.
        client_certificate: The client's certificate chain, if the server asks for one.
        client_key: The private key of `client_certificate`.
        server_name: Name the server's certificate must have; None means that of the target.
    """

    ca_certificate: bytes | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Check that certificate and key come together."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key must be given together")

    @classmethod
    def from_files(
        cls,
        ca_certificate: str | os.PathLike[str] | None = None,
        client_certificate: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
    ) -> "TLSConfig":
        """Read the certificates from files."""
        paths = (ca_certificate, client_certificate, client_key)
        ca, certificate, key = (Path(path).read_bytes() if path else None for path in paths)
        return cls(ca, certificate, key, server_name)


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How calls are tried again when the server is UNAVAILABLE; no other error is retried.

    A stream is retried only while nothing has arrived.

    Attributes:
        max_attempts: Most tries, the first included; 1 turns retries off.
        initial_backoff_seconds: Longest wait before the second try; waits are random.
        max_backoff_seconds: Longest wait before any try.
        backoff_multiplier: Growth of the wait from try to try.
    """

    max_attempts: int = 4
    initial_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 2.0
    backoff_multiplier: float = 2.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"max_attempts must be in [1, {MAX_ATTEMPTS}], got {self.max_attempts}"
            )
        for name in ("initial_backoff_seconds", "max_backoff_seconds", "backoff_multiplier"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class KeepAliveConfig:
    """How a silent connection is checked while a call is open.

    Attributes:
        interval_seconds: Time between two pings; at least 10, which is what servers permit.
        timeout_seconds: How long a ping may stay unanswered.
    """

    interval_seconds: float = 20.0
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.interval_seconds < MIN_KEEPALIVE_INTERVAL_SECONDS:
            raise ValueError(
                f"interval_seconds must be >= {MIN_KEEPALIVE_INTERVAL_SECONDS:.0f}, "
                f"got {self.interval_seconds}"
            )
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be > 0, got {self.timeout_seconds}")


DEFAULT_RETRY = RetryConfig()
DEFAULT_KEEPALIVE = KeepAliveConfig()
