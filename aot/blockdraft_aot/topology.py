"""TPUs to compile for on a machine that has none, and the chips of verifier and drafter."""

import importlib.util
import math
import os
import re
from dataclasses import dataclass

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from blockdraft_aot.roofline import PUBLISHED, Roofline
from blockdraft_aot.settings import AotError
from blockdraft_models.decoder.sharding import model_mesh
from blockdraft_models.executables import enlarge_libtpu_stacks
from blockdraft_runtime.tpu import (
    ChipSplit,
    TpuHost,
    default_split,
    drafter_environment,
    verifier_environment,
)

# Memory of one chip by the name JAX gives it, as published (cloud.google.com/tpu/docs).
_MEMORY_BYTES = {
    "TPU v5": 95e9,
    "TPU v5p": 95e9,
    "TPU v5 lite": 16e9,
    "TPU v5e": 16e9,
    "TPU v6 lite": 32e9,
    "TPU v6e": 32e9,
    # Half of a chip's 192 GiB: JAX takes a chip for two devices.
    "TPU7x": 96e9,
}
# Chips of the largest single host; libtpu takes a slice for several hosts unless told.
_HOST_CHIPS = {"v5p": 4, "v5e": 8, "v6e": 8, "tpu7x": 4}


@dataclass(frozen=True, slots=True)
class Topology:
    """Chips that are not there, in a row; roofline and memory are those of one of them."""

    name: str
    mesh: Mesh
    roofline: Roofline
    memory_bytes: int

    @property
    def kind(self) -> str:
        """JAX's name of the chips."""
        name: str = self.mesh.devices.flat[0].device_kind
        return name


def describe_topology(name: str) -> Topology:
    """Return the chips of a generation and shape, such as "v5p:2x2x1"; AotError if unknown."""
    match = re.fullmatch(r"(v\w+|tpu7x):([1-9]\d*(?:x[1-9]\d*){1,2})", name)
    if match is None:
        raise AotError(f"a topology is written like v5p:2x2x1 or v5e:2x4, got {name!r}")
    if importlib.util.find_spec("libtpu") is None:
        raise AotError("compiling for a TPU needs libtpu: pip install 'blockdraft[tpu]'")
    # Outside Google's cloud there is no metadata server.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # No chip is taken, so other processes may do the same, or serve, at the same time.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    enlarge_libtpu_stacks()
    generation, shape = match[1], tuple(int(size) for size in match[2].split("x"))
    bounds = {}
    if math.prod(shape) <= _HOST_CHIPS.get(generation, 0):
        bounds["chips_per_host_bounds"] = (*shape, 1)[:3]
    try:
        chips = topologies.get_topology_desc(platform="tpu", topology_name=name, **bounds).devices
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise AotError(f"libtpu has no topology {name!r}: {error}") from error
    mesh = model_mesh(chips)
    kind = str(mesh.devices.flat[0].device_kind)
    if kind not in PUBLISHED or kind not in _MEMORY_BYTES:
        raise AotError(f"the figures of {kind} ({name}) are not known")
    return Topology(name, mesh, PUBLISHED[kind], int(_MEMORY_BYTES[kind]))


def role_topologies(topology: str, split: str | None, *, drafting: bool) -> tuple[str, str | None]:
    """Return the topologies that verifier and drafter see; None for a drafter without chips.

    They are those that `blockdraft serve` gives its processes with the same split, `V+D`; without
    one, both have all, as the verifier hosts the drafter. Raises AotError if the chips cannot be
    split like this.
    """
    generation, _, shape = topology.partition(":")
    try:
        host = TpuHost.of_slice(generation, shape)
        if drafting and split is None and host.num_hosts == 1:
            return topology, topology
        parts = default_split(host, drafting=drafting) if split is None else ChipSplit.parse(split)
        if drafting != (parts.drafter > 0):
            raise AotError(f"--tpu-split {parts} and --drafter contradict each other")
        verifier = verifier_environment(host, parts)
        drafter = drafter_environment(host, parts) if drafting else None
    except ValueError as error:
        raise AotError(str(error)) from error

    def rectangle(environment: dict[str, str]) -> str:
        sizes = environment["TPU_CHIPS_PER_PROCESS_BOUNDS"].split(",")[: shape.count("x") + 1]
        return f"{generation}:{'x'.join(sizes)}"

    if host.num_hosts > 1:
        return topology, None
    return rectangle(verifier), None if drafter is None else rectangle(drafter)
