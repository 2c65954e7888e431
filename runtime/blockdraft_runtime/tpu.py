"""The TPU chips of a host, as the environment describes them, and their owners.

GKE sets `TPU_ACCELERATOR_TYPE`, `TPU_TOPOLOGY`, `TPU_WORKER_ID` and `TPU_WORKER_HOSTNAMES` in the
containers of a TPU node (https://cloud.google.com/kubernetes-engine/docs/concepts/tpus). The
number in an accelerator type counts TensorCores up to v5p and for tpu7x, two to a chip, and chips
for v5e and v6e. A slice of v5e or v6e of up to eight chips is one host or is made of hosts of
four; larger ones and all of v4, v5p and tpu7x are made of hosts of four.

A chip belongs to one process. libtpu takes a process's chips from `TPU_VISIBLE_CHIPS` and locks the
host for one process, unless `ALLOW_MULTIPLE_LIBTPU_LOAD` is set or the bounds look like a part of a
host: 2,2,1 does not, even on one of eight chips. Chips are numbered with x fastest, so blocks of 1,
2, 4 or 8 that begin at a multiple of their size are rectangles whose chips are neighbours, on hosts
of 1x1, 2x2 and 2x4 alike. Parts of a host are declared as 1,N,1 however they lie, as Ray
(`TPU_VALID_CHIP_OPTIONS`) and tpu-inference (`single_proc_per_worker.py`) do. With bounds of 1,1,1
processes each process is a slice of its own. Every process needs a port of its own, and a task id
that is its number in its slice.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Bounds = tuple[int, int, int]
"""Chips, or hosts, along x, y and z."""

COORDINATOR_PORT = 8482
"""Port at which the processes of a slice meet, on its first host; JAX's own choice on TPU."""

BASE_PROCESS_PORT = 8476
"""Port of libtpu's slice builder in the verifier; the drafter takes the next one."""

OF_WHOLE_HOSTS = frozenset(
    (
        *("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS"),
        *("TPU_TOPOLOGY", "TPU_TOPOLOGY_WRAP"),
    )
)
"""Variables of GKE that contradict those of a process with a part of a host."""

_HOST_OF_FOUR: Bounds = (2, 2, 1)
_BLOCKS = (1, 2, 4, 8)
_LARGEST_FLAT_HOST_CHIPS = 8
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2, "v5e": 1, "v6e": 1, "tpu7x": 2}
_FLAT = ("v5e", "v6e")
# Of slices whose topology is not set: the default of the Cloud TPU documentation, by chips.
_FLAT_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
_FLAT_TOPOLOGIES |= {128: "8x16", 256: "16x16"}
_CUBE_TOPOLOGIES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}


@dataclass(frozen=True, slots=True)
class TpuHost:
    """One host of a TPU slice."""

    accelerator_type: str  # type of the slice, such as `v5p-8` or `v5e-16`
    chips: Bounds  # chips of each host
    hosts: Bounds = (1, 1, 1)  # hosts of the slice
    worker_id: int = 0  # number of this host in the slice; x counts fastest
    hostnames: tuple[str, ...] = ("localhost",)  # names or addresses of all hosts, by worker id
    # Ports of libtpu's own metrics, one for each chip of this host, as GKE sets them in
    # `TPU_RUNTIME_METRICS_PORTS`, or two for each of tpu7x; empty where these are not wanted.
    metrics_ports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the hosts are those of the slice."""
        if len(self.hostnames) != self.num_hosts:
            raise ValueError(
                f"{self.accelerator_type} has {self.num_hosts} hosts, but TPU_WORKER_HOSTNAMES "
                f"names {len(self.hostnames)}"
            )
        if not 0 <= self.worker_id < self.num_hosts:
            raise ValueError(
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
        """Return the first host of a slice that need not exist, such as "v5p", "2x2x1".

        `ValueError` if there is no such slice.
        """
        if generation not in _CORES_PER_CHIP or not _TOPOLOGY.fullmatch(topology):
            raise ValueError(f"no slice is called {generation}:{topology}; one is v5p:2x2x1")
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
        """Return the host that the environment describes; None if it describes no TPU.

        An `accelerator_type` takes the place of the environment's type and topology.

        `ValueError` if the type is unknown, or type, topology and hosts do not fit.
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
            raise ValueError(
                f"a slice of {_times(slice_bounds)} chips is not made of hosts of {_times(chips)}"
            )
        x, y, z = (whole // part for whole, part in zip(slice_bounds, chips, strict=True))
        worker_id = environ.get("TPU_WORKER_ID") or "0"
        if not worker_id.isdecimal():
            raise ValueError(f"TPU_WORKER_ID is no number: {worker_id!r}")
        ports = tuple(filter(None, environ.get("TPU_RUNTIME_METRICS_PORTS", "").split(",")))
        return cls(accelerator_type, chips, (x, y, z), int(worker_id), hostnames, ports)


def _parse_type(accelerator_type: str) -> tuple[str, int]:
    """Return generation and chips of the slice."""
    match = re.fullmatch(r"(v\w+|tpu7x)-([1-9]\d*)", accelerator_type)
    # The API's name of v5e.
    generation = match[1].replace("v5litepod", "v5e") if match else ""
    if match is None or generation not in _CORES_PER_CHIP:
        raise ValueError(
            f"unknown TPU {accelerator_type!r}: expected one of "
            f"{', '.join(_CORES_PER_CHIP)}, then - and its size, such as v5p-8 or v5e-4"
        )
    chips, rest = divmod(int(match[2]), _CORES_PER_CHIP[generation])
    if rest:
        raise ValueError(f"{accelerator_type} counts cores, two to a chip: the size must be even")
    return generation, chips


def _slice_bounds(
    accelerator_type: str, generation: str, num_chips: int, topology: str | None
) -> Bounds:
    """Return the chips of the slice, from the topology or else by default."""
    default_topologies = _FLAT_TOPOLOGIES if generation in _FLAT else _CUBE_TOPOLOGIES
    topology = topology or default_topologies.get(num_chips)
    if topology is None:
        raise ValueError(f"{accelerator_type} has no default topology: TPU_TOPOLOGY must say it")
    if not _TOPOLOGY.fullmatch(topology):
        raise ValueError(f"TPU_TOPOLOGY must be like 2x4 or 2x2x1, got {topology!r}")
    x, y, z = (*(int(size) for size in topology.split("x")), 1)[:3]
    if x * y * z != num_chips:
        raise ValueError(
            f"{accelerator_type} has {num_chips} chips, but TPU_TOPOLOGY {topology} has {x * y * z}"
        )
    return x, y, z


def _times(bounds: Bounds) -> str:
    return "x".join(str(size) for size in bounds)


@dataclass(frozen=True, slots=True)
class ChipSplit:
    """Numbers of chips that verifier and drafter own."""

    verifier: int  # chips of the verifier; on a slice of several hosts, of all of them
    drafter: int  # chips of the drafter; 0 to decode plainly

    @classmethod
    def parse(cls, text: str) -> "ChipSplit":
        """Return the split written as `V+D`."""
        match = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", text)
        if match is None or int(match[1]) == 0:
            raise ValueError(
                f"a split of chips is written V+D, verifier first, such as 2+2 or 4+0: got {text!r}"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Write it as `V+D`."""
        return f"{self.verifier}+{self.drafter}"


def default_split(host: TpuHost, *, drafting: bool) -> ChipSplit:
    """Return half of the host for each process, or all chips for the verifier if alone.

    `ValueError` if the two cannot share this host or slice.
    """
    if not drafting:
        return ChipSplit(host.num_chips * host.num_hosts, 0)
    half = max(1, host.num_chips // 2)
    split = ChipSplit(half, half)
    _check(host, split)
    return split


def fitting_splits(host: TpuHost) -> tuple[ChipSplit, ...]:
    """Return every split that this host or slice allows, most chips for the verifier first."""
    if host.num_hosts > 1:
        return (ChipSplit(host.num_chips * host.num_hosts, 0),)
    sizes = [size for size in sorted(_BLOCKS, reverse=True) if size <= host.num_chips]
    pairs = itertools.product(sizes, (*sizes, 0))
    return tuple(
        ChipSplit(verifier, drafter)
        for verifier, drafter in pairs
        if verifier + drafter <= host.num_chips
    )


def verifier_environment(host: TpuHost, split: ChipSplit) -> dict[str, str]:
    """Return the environment variables of the verifier's process on this host."""
    _check(host, split)
    if host.num_hosts == 1:
        return _environment(host, range(split.verifier), BASE_PROCESS_PORT)
    environment = _environment(host, range(host.num_chips), BASE_PROCESS_PORT)
    addresses = ",".join(f"{name}:{BASE_PROCESS_PORT}" for name in host.hostnames)
    return environment | {
        "TPU_PROCESS_BOUNDS": _joined(host.hosts),
        "TPU_PROCESS_ADDRESSES": addresses,
        "CLOUD_TPU_TASK_ID": str(host.worker_id),
    }


def drafter_environment(host: TpuHost, split: ChipSplit) -> dict[str, str]:
    """Return the environment variables of the drafter's process.

    `ValueError` if the split does not fit, or has no chips for the drafter.
    """
    _check(host, split)
    if split.drafter == 0:
        raise ValueError(f"{split} leaves the drafter no chips")
    # The first multiple of its size beyond the verifier's; sizes are powers of two, so it fits.
    start = math.ceil(split.verifier / split.drafter) * split.drafter
    return _environment(host, range(start, start + split.drafter), BASE_PROCESS_PORT + 1)


def _check(host: TpuHost, split: ChipSplit) -> None:
    fitting = fitting_splits(host)
    if split in fitting:
        return
    if host.num_hosts > 1:
        reason = (
            f"the verifier takes all of a slice of {host.num_hosts} hosts; decode plainly "
            "(--no-drafter), or start the processes one by one with the drafter on another node"
        )
    elif host.num_chips == 1:
        reason = (
            "verifier and drafter cannot both own its only chip; decode plainly (--no-drafter), "
            "or start the drafter on another node"
        )
    else:
        reason = "each process needs 1, 2, 4 or 8 neighbouring chips of its own"
    names = ", ".join(map(str, fitting))
    raise ValueError(f"{host.accelerator_type} cannot be split {split}: {reason}. Fits: {names}")


def _environment(host: TpuHost, chips: range, port: int) -> dict[str, str]:
    """Return the variables that make a process with these chips a slice of its own."""
    # Two processes that inherit all ports would both want the first one.
    ports = host.metrics_ports
    per_chip, rest = divmod(len(ports), host.num_chips)
    variables = {}
    if per_chip and not rest:
        of_chips = ports[chips.start * per_chip : chips.stop * per_chip]
        variables = {"TPU_RUNTIME_METRICS_PORTS": ",".join(of_chips)}
    bounds = host.chips
    if len(chips) < host.num_chips:
        bounds = 1, len(chips), 1
        variables["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    return variables | {
        "TPU_VISIBLE_CHIPS": _joined(chips),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _joined(bounds),
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": str(port),
        "CLOUD_TPU_TASK_ID": "0",
    }


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
