"""The processes of a verifier on a slice of several hosts; one per host."""

from collections.abc import Mapping
from dataclasses import dataclass

from blockdraft_runtime.tpu_host import COORDINATOR_PORT, TpuHost


@dataclass(frozen=True, slots=True)
class SliceSettings:
    """Which process of a slice this is.

    Attributes:
        coordinator: Where the processes meet, `host:port`; the host is that of process 0.
        num_processes: How many there are.
        process_id: Which one this is; 0 leads.
    """

    coordinator: str
    num_processes: int
    process_id: int

    def __post_init__(self) -> None:
        """Check the ranges."""
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"--coordinator must be host:port, got {self.coordinator!r}")
        if self.num_processes < 2:
            raise ValueError(f"--num-processes must be at least 2, got {self.num_processes}")
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(
                f"--process-id must be 0 to {self.num_processes - 1}, got {self.process_id}"
            )

    @property
    def leads(self) -> bool:
        """Whether this is the process that schedules and answers."""
        return self.process_id == 0

    @property
    def leader_host(self) -> str:
        """Name or address of the host of process 0."""
        return self.coordinator.rpartition(":")[0].strip("[]")


def slice_from(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    environ: Mapping[str, str],
) -> SliceSettings | None:
    """Return the slice that flags tell of, or else the environment of a TPU; None for one process.

    Args:
        coordinator: Flag of this name.
        num_processes: Flag of this name.
        process_id: Flag of this name.
        environ: Environment variables.

    Raises:
        ValueError: If some flags are missing, or out of range, or the environment makes no sense.
    """
    if coordinator is None and num_processes is None and process_id is None:
        host = TpuHost.from_environment(environ)
        if host is None or host.num_hosts == 1:
            return None
        coordinator = f"{host.hostnames[0]}:{COORDINATOR_PORT}"
        return SliceSettings(coordinator, host.num_hosts, host.worker_id)
    if coordinator is None or num_processes is None or process_id is None:
        raise ValueError("--coordinator, --num-processes and --process-id need each other")
    return SliceSettings(coordinator, num_processes, process_id)
