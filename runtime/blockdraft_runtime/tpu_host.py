"""What the environment tells of a TPU host: its chips, and the slice it belongs to.

GKE sets `TPU_ACCELERATOR_TYPE`, `TPU_TOPOLOGY`, `TPU_WORKER_ID` and `TPU_WORKER_HOSTNAMES` in the
containers of a TPU node (https://cloud.google.com/kubernetes-engine/docs/concepts/tpus). The
number in an accelerator type counts TensorCores up to v5p and for tpu7x, two to a chip, and chips
for v5e and v6e. A slice of v5e or v6e of up to eight chips is one host or is made of hosts of
four; larger ones and all of v4, v5p and tpu7x are made of hosts of four.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

Bounds = tuple[int, int, int]
"""Chips, or hosts, along x, y and z."""

COORDINATOR_PORT = 8482
"""Port at which the processes of a slice meet, on its first host; JAX's own choice on TPU."""

_HOST_OF_FOUR: Bounds = (2, 2, 1)
_LARGEST_FLAT_HOST_CHIPS = 8
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2, "v5e": 1, "v6e": 1, "tpu7x": 2}
_FLAT = ("v5e", "v6e")
# Of slices whose topology nobody tells: the default of the Cloud TPU documentation, by chips.
_FLAT_TOPOLOGIES: Mapping[int, Bounds] = {
    1: (1, 1, 1),
    4: (2, 2, 1),
    8: (2, 4, 1),
    16: (4, 4, 1),
    32: (4, 8, 1),
    64: (8, 8, 1),
    128: (8, 16, 1),
    256: (16, 16, 1),
}
_CUBE_TOPOLOGIES: Mapping[int, Bounds] = {
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
    64: (4, 4, 4),
}


class TpuHostError(ValueError):
    """A TPU host, or its environment, is described in a way that makes no sense."""


@dataclass(frozen=True, slots=True)
class TpuHost:
    """One host of a TPU slice.

    Attributes:
        accelerator_type: What the slice is, such as `v5p-8` or `v5e-16`.
        chips: Chips of each host.
        hosts: Hosts of the slice.
        worker_id: Which of the hosts this is; x counts fastest.
        hostnames: Names or addresses of all hosts, by worker id.
        metrics_ports: Ports of libtpu's own metrics, one for each chip of this host, as GKE sets
            them in `TPU_RUNTIME_METRICS_PORTS`; empty where nobody asks for these metrics.
    """

    accelerator_type: str
    chips: Bounds
    hosts: Bounds = (1, 1, 1)
    worker_id: int = 0
    hostnames: tuple[str, ...] = ("localhost",)
    metrics_ports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the hosts are those of the slice."""
        if len(self.hostnames) != self.num_hosts:
            raise TpuHostError(
                f"{self.accelerator_type} has {self.num_hosts} hosts, but TPU_WORKER_HOSTNAMES "
                f"names {len(self.hostnames)}"
            )
        if not 0 <= self.worker_id < self.num_hosts:
            raise TpuHostError(
                f"TPU_WORKER_ID must be 0 to {self.num_hosts - 1} on {self.accelerator_type}, "
                f"got {self.worker_id}"
            )

    @property
    def num_chips(self) -> int:
        """Chips of this host."""
        return math.prod(self.chips)

    @property
    def num_hosts(self) -> int:
        """Hosts of the slice."""
        return math.prod(self.hosts)

    @classmethod
    def of_slice(cls, generation: str, topology: str) -> "TpuHost":
        """Return the first host of a slice that is not there, such as of "v5p", "2x2x1".

        Raises:
            TpuHostError: If there is no such slice.
        """
        if generation not in _CORES_PER_CHIP or not _TOPOLOGY.fullmatch(topology):
            raise TpuHostError(f"no slice is called {generation}:{topology}; one is v5p:2x2x1")
        num_chips = math.prod(int(size) for size in topology.split("x"))
        one_host = generation in _FLAT and num_chips <= _LARGEST_FLAT_HOST_CHIPS
        hosts = 1 if one_host else max(1, num_chips // math.prod(_HOST_OF_FOUR))
        host = cls.from_environment(
            {
                "TPU_ACCELERATOR_TYPE": f"{generation}-{num_chips * _CORES_PER_CHIP[generation]}",
                "TPU_TOPOLOGY": topology,
                "TPU_WORKER_HOSTNAMES": ",".join(["localhost"] * hosts),
            }
        )
        assert host is not None
        return host

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], accelerator_type: str | None = None
    ) -> "TpuHost | None":
        """Return the host that the environment tells of; None if it tells of no TPU.

        Args:
            environ: Environment variables.
            accelerator_type: Stands in for what the environment says of type and topology.

        Raises:
            TpuHostError: If the type is unknown, or type, topology and hosts do not fit.
        """
        topology = None
        if accelerator_type is None:
            platforms = environ.get("JAX_PLATFORMS", "")
            accelerator_type = environ.get("TPU_ACCELERATOR_TYPE", "")
            if not accelerator_type or (platforms and "tpu" not in platforms.split(",")):
                return None
            topology = environ.get("TPU_TOPOLOGY")
        generation, num_chips = _parse_type(accelerator_type)
        slice_bounds = _slice_bounds(accelerator_type, generation, num_chips, topology)
        hostnames = tuple(
            name for name in environ.get("TPU_WORKER_HOSTNAMES", "localhost").split(",") if name
        )
        # Two machine types have slices of eight chips: one host of eight, or two of four.
        one_host = generation in _FLAT and num_chips <= _LARGEST_FLAT_HOST_CHIPS
        chips = slice_bounds if one_host and len(hostnames) == 1 else _HOST_OF_FOUR
        if any(whole % part for whole, part in zip(slice_bounds, chips, strict=True)):
            raise TpuHostError(
                f"a slice of {_times(slice_bounds)} chips is not made of hosts of {_times(chips)}"
            )
        x, y, z = (whole // part for whole, part in zip(slice_bounds, chips, strict=True))
        worker_id = environ.get("TPU_WORKER_ID") or "0"
        if not worker_id.isdecimal():
            raise TpuHostError(f"TPU_WORKER_ID is no number: {worker_id!r}")
        ports = tuple(filter(None, environ.get("TPU_RUNTIME_METRICS_PORTS", "").split(",")))
        return cls(accelerator_type, chips, (x, y, z), int(worker_id), hostnames, ports)


def _parse_type(accelerator_type: str) -> tuple[str, int]:
    """Return generation and chips of the slice."""
    match = re.fullmatch(r"(v\w+|tpu7x)-([1-9]\d*)", accelerator_type)
    # The API's name of v5e.
    generation = match[1].replace("v5litepod", "v5e") if match else ""
    if match is None or generation not in _CORES_PER_CHIP:
        raise TpuHostError(
            f"unknown TPU {accelerator_type!r}: expected one of "
            f"{', '.join(_CORES_PER_CHIP)}, then - and its size, such as v5p-8 or v5e-4"
        )
    chips, rest = divmod(int(match[2]), _CORES_PER_CHIP[generation])
    if rest:
        raise TpuHostError(f"{accelerator_type} counts cores, two to a chip: the size must be even")
    return generation, chips


def _slice_bounds(
    accelerator_type: str, generation: str, num_chips: int, topology: str | None
) -> Bounds:
    """Return the chips of the slice, from the topology or else by default."""
    if not topology:
        known = _FLAT_TOPOLOGIES if generation in _FLAT else _CUBE_TOPOLOGIES
        if num_chips not in known:
            raise TpuHostError(
                f"{accelerator_type} has no default topology: TPU_TOPOLOGY must say it"
            )
        return known[num_chips]
    if not _TOPOLOGY.fullmatch(topology):
        raise TpuHostError(f"TPU_TOPOLOGY must be like 2x4 or 2x2x1, got {topology!r}")
    x, y, z = (*(int(size) for size in topology.split("x")), 1)[:3]
    if x * y * z != num_chips:
        raise TpuHostError(
            f"{accelerator_type} has {num_chips} chips, but TPU_TOPOLOGY {topology} has {x * y * z}"
        )
    return x, y, z


def _times(bounds: Bounds) -> str:
    return "x".join(str(size) for size in bounds)
