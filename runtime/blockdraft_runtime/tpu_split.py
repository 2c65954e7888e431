"""Which chips of a TPU host the verifier owns and which the drafter, as libtpu wants to hear it.

A chip belongs to one process. libtpu lets several processes load it when
`TPU_CHIPS_PER_PROCESS_BOUNDS` is a subset of the host's chips, and takes the chips themselves from
`TPU_VISIBLE_CHIPS`. Chips are numbered with x fastest, so blocks of 1, 2, 4 or 8 that begin at a
multiple of their size are rectangles whose chips are neighbours, on hosts of 1x1, 2x2 and 2x4
alike. The shape of each is the one that JAX's own tests (`jax/_src/test_multiprocess.py`), Ray
(`TPU_VALID_CHIP_OPTIONS`) and vLLM's TPU backend (`TPUWorker._setup_dp_chip_isolation`) declare;
two chips are 1,2,1 there, however they lie.

With bounds of 1,1,1 processes each process is a slice of its own. Every process needs a port of
its own, and a task id that is its number within its slice.
"""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from blockdraft_runtime.tpu_host import Bounds, TpuHost

BASE_PROCESS_PORT = 8476
"""Port of libtpu's slice builder in the verifier; the drafter takes the next one."""

_ONE_PROCESS: Bounds = (1, 1, 1)
_BLOCKS: Mapping[int, Bounds] = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


class ChipSplitError(ValueError):
    """The chips of a host cannot be split like this."""


@dataclass(frozen=True, slots=True)
class ChipSplit:
    """How many chips each process owns.

    Attributes:
        verifier: Chips of the verifier; on a slice of several hosts, of all of them.
        drafter: Chips of the drafter; 0 to decode plainly.
    """

    verifier: int
    drafter: int

    @classmethod
    def parse(cls, text: str) -> "ChipSplit":
        """Return the split written as `V+D`.

        Raises:
            ChipSplitError: If the text is no split.
        """
        match = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", text)
        if match is None or int(match[1]) == 0:
            raise ChipSplitError(
                f"a split of chips is written V+D, verifier first, such as 2+2 or 4+0: got {text!r}"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Write it as `V+D`."""
        return f"{self.verifier}+{self.drafter}"


def default_split(host: TpuHost, *, drafting: bool) -> ChipSplit:
    """Return half of the host for each process, or all chips for the verifier if alone.

    Raises:
        ChipSplitError: If the two cannot share this host or slice.
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
    """Return what the verifier's process on this host must have in its environment.

    Raises:
        ChipSplitError: If the split does not fit.
    """
    _check(host, split)
    if host.num_hosts == 1:
        chips = range(split.verifier)
        return _environment(host, chips, _BLOCKS[split.verifier], BASE_PROCESS_PORT)
    return _environment(
        host,
        range(host.num_chips),
        host.chips,
        BASE_PROCESS_PORT,
        processes=host.hosts,
        hostnames=host.hostnames,
        task_id=host.worker_id,
    )


def drafter_environment(host: TpuHost, split: ChipSplit) -> dict[str, str]:
    """Return what the drafter's process must have in its environment.

    Raises:
        ChipSplitError: If the split does not fit, or has no chips for the drafter.
    """
    _check(host, split)
    if split.drafter == 0:
        raise ChipSplitError(f"{split} leaves the drafter no chips")
    # The first multiple of its size beyond the verifier's; sizes are powers of two, so it fits.
    start = math.ceil(split.verifier / split.drafter) * split.drafter
    chips = range(start, start + split.drafter)
    return _environment(host, chips, _BLOCKS[split.drafter], BASE_PROCESS_PORT + 1)


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
    names = ", ".join(str(each) for each in fitting)
    raise ChipSplitError(
        f"{host.accelerator_type} cannot be split {split}: {reason}. Fits: {names}"
    )


def _environment(
    host: TpuHost,
    chips: range,
    shape: Bounds,
    port: int,
    *,
    processes: Bounds = _ONE_PROCESS,
    hostnames: tuple[str, ...] = ("localhost",),
    task_id: int = 0,
) -> dict[str, str]:
    def joined(numbers: Bounds | range) -> str:
        return ",".join(str(number) for number in numbers)

    # Two processes that inherit all ports would both want the first one.
    ports = host.metrics_ports
    metrics = {}
    if len(ports) == host.num_chips:
        metrics = {"TPU_RUNTIME_METRICS_PORTS": ",".join(ports[chip] for chip in chips)}
    return metrics | {
        "TPU_VISIBLE_CHIPS": joined(chips),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": joined(shape),
        "TPU_PROCESS_BOUNDS": joined(processes),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{name}:{port}" for name in hostnames),
        "TPU_PROCESS_PORT": str(port),
        "CLOUD_TPU_TASK_ID": str(task_id),
    }
