"""libtpu starts beside another process of the host, as far as that goes without chips."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.server.supervise.test_plan import plan

from blockdraft_runtime.tpu import TpuHost, fitting_splits

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu

LOCK = "/tmp/libtpu_lockfile"  # where libtpu has it
HOLDER = f"""
import fcntl, sys
with open({LOCK!r}, "a") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""
STARTING = """
from blockdraft_models.executables import require_devices
try:
    require_devices()
except RuntimeError as error:
    print(error)
"""
# What GKE's device plugin sets.
KINDS = {"v5e-4": "2,2,1", "v5p-8": "2,2,1", "v5e-8": "2,4,1", "v6e-8": "2,4,1"}


@pytest.fixture(autouse=True, scope="module")
def _another_process() -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        assert holder.stdin is not None
        holder.stdin.close()


def start(environment: Mapping[str, str]) -> str:
    """Return what libtpu says where there are no chips."""
    # Set where programs are compiled ahead of time.
    inherited = {k: v for k, v in os.environ.items() if k != "ALLOW_MULTIPLE_LIBTPU_LOAD"}
    variables = {**inherited, "JAX_PLATFORMS": "tpu", "TPU_SKIP_MDS_QUERY": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", STARTING],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_a_whole_host_is_locked() -> None:
    assert "libtpu_lockfile" in start({})


def test_no_part_of_a_host_is_locked() -> None:
    environments: dict[str, Mapping[str, str]] = {}
    for kind, bounds in KINDS.items():
        gke: dict[str, Any] = {"TPU_ACCELERATOR_TYPE": kind, "TPU_CHIPS_PER_HOST_BOUNDS": bounds}
        host = TpuHost.from_environment(gke)
        assert host is not None
        for split in fitting_splits(host):
            chips = plan("--tpu-split", str(split), **gke).chips if split.drafter else {}
            for variables in chips.values():
                # Which chips they are, and of which host, does not matter.
                environments[variables["TPU_CHIPS_PER_PROCESS_BOUNDS"]] = variables
    assert environments.keys() == {"1,1,1", "1,2,1", "1,4,1"}
    for variables in environments.values():
        assert "No jellyfish device found" in start(variables)
