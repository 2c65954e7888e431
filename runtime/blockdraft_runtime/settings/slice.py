"""The processes of a verifier on a slice of several hosts; one per host."""

from dataclasses import dataclass

from blockdraft_runtime.configuration.definition import check, required
from blockdraft_runtime.tpu_host import COORDINATOR_PORT, TpuHost


@dataclass(frozen=True, slots=True)
class SliceSettings:
    """Which process of a slice this is."""

    coordinator: str = required(
        "on a slice of several hosts: where its processes meet, on the host of process 0; unset: "
        "what the environment of a TPU says",
        metavar="HOST:PORT",
    )
    num_processes: int = required("processes of the slice, one per host", minimum=2)
    process_id: int = required("number of this process, from 0; process 0 leads", minimum=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"--coordinator must be host:port, got {self.coordinator!r}")
        if self.process_id >= self.num_processes:
            raise ValueError(
                f"--process-id must be 0 to {self.num_processes - 1}, got {self.process_id}"
            )

    @classmethod
    def of(cls, host: TpuHost | None) -> "SliceSettings | None":
        """Return the process that a TPU host is; None without TPU, and if there is only one."""
        if host is None or host.num_hosts == 1:
            return None
        return cls(f"{host.hostnames[0]}:{COORDINATOR_PORT}", host.num_hosts, host.worker_id)

    @property
    def leads(self) -> bool:
        """Whether this is the process that schedules and answers."""
        return self.process_id == 0

    @property
    def leader_host(self) -> str:
        """Name or address of the host of process 0."""
        return self.coordinator.rpartition(":")[0].strip("[]")
