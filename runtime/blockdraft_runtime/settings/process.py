"""What every serving process is told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Where a process listens and how it stops.

    Attributes:
        address: gRPC address, `host:port` or `unix:/path`.
        metrics_port: Port of the Prometheus endpoint, or None for none.
        drain_seconds: How long calls in flight may go on after SIGTERM.
        control_address: A second address, always plaintext, for a supervisor's health checks;
            None for none. Meant for a unix socket in a private folder.
    """

    address: str
    metrics_port: int | None = None
    drain_seconds: float = 30.0
    control_address: str | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.drain_seconds < 0:
            raise ValueError(f"drain_seconds must be >= 0, got {self.drain_seconds}")
