"""A TPU to compile for on a machine that has none."""

import importlib.util
import os

import jax
from jax.experimental import topologies

from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.roofline import PUBLISHED, Roofline


def topology_device(name: str) -> tuple[jax.Device, Roofline]:
    """Return one chip of a topology and what it can do.

    Args:
        name: Such as "v5p:2x2x1".

    Raises:
        BenchUsageError: If libtpu is missing, or knows no such topology, or its chip's figures
            are not known.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise BenchUsageError("--topology needs libtpu; pip install 'blockdraft[tpu]'")
    # Off Google's cloud nobody answers the metadata server's address.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise BenchUsageError(f"libtpu has no topology {name!r}: {error}") from error
    device: jax.Device = description.devices[0]
    if device.device_kind not in PUBLISHED:
        raise BenchUsageError(f"the roofline of {device.device_kind} ({name}) is not known")
    return device, PUBLISHED[device.device_kind]
