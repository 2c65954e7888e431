"""What a process may do before its devices start."""

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import logging, resource
logging.basicConfig(level=logging.INFO, format="%(message)s")
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 8 << 20))
from blockdraft_models.executables import _allow_locked_memory
_allow_locked_memory()
print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >> 20)
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY
    and resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < 8 << 20,
    reason="this process may not lock so much",
)
def test_memory_may_be_locked_up_to_the_hard_limit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "8\n"
    assert "no more than 8 MiB of memory can be locked" in done.stderr
