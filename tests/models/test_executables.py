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
from blockdraft_models.executables import allow_locked_memory
allow_locked_memory()
print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >> 20)
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY
    and resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < 8 << 20,
    reason="this process may not lock so much",
)
def test_memory_may_be_locked_up_to_the_hard_limit() -> None:
    raised = run(JAX_PLATFORMS="tpu")
    assert raised.stdout == "8\n"
    assert "no more than 8 MiB of memory can be locked" in raised.stderr
    assert run(JAX_PLATFORMS="cpu").stdout == "1\n"


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | environment,
    )
