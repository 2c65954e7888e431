"""What a process may do before its devices start."""

import os
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import logging, resource
logging.basicConfig(level=logging.INFO, format="%(message)s")
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 8 << 20))
from blockdraft_models.executables import prepare_libtpu
prepare_libtpu()
import os
print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >> 20, os.environ.get("LIBTPU_INIT_ARGS"))
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY
    and resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < 8 << 20,
    reason="this process may not lock so much",
)
def test_memory_may_be_locked_up_to_the_hard_limit() -> None:
    raised = run(JAX_PLATFORMS="tpu")
    assert raised.stdout.startswith("8 ")
    assert "no more than 8 MiB of memory can be locked" in raised.stderr
    assert run(JAX_PLATFORMS="cpu").stdout.startswith("1 ")


def test_stacks_of_libtpu_are_larger_unless_the_caller_sets_them() -> None:
    flag = "--fibers_default_thread_stack_size"
    assert run(JAX_PLATFORMS="tpu").stdout.split()[1:] == [f"{flag}=4194304"]
    both = run(JAX_PLATFORMS="tpu", LIBTPU_INIT_ARGS="--other=1").stdout.split()[1:]
    assert both == ["--other=1", f"{flag}=4194304"]
    chosen = run(JAX_PLATFORMS="tpu", LIBTPU_INIT_ARGS=f"{flag}=65536").stdout.split()[1:]
    assert chosen == [f"{flag}=65536"]
    assert run(JAX_PLATFORMS="cpu").stdout.split()[1:] == ["None"]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | environment,
    )
