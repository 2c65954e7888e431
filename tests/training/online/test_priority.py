"""The trainer's priority, as the kernel has it."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
# The file is empty for a process that a control group schedules.
GROUPED = AUTOGROUP.exists() and bool(AUTOGROUP.read_text().strip())
PROGRAM = """
import os
import sys
from pathlib import Path
from blockdraft_training.online.run import take_lowest_priority
take_lowest_priority()
print(os.nice(0), *(Path(path).read_text().split()[-1] for path in sys.argv[1:]))
"""


def priorities(*, own_session: bool) -> list[str]:
    """The niceness of a process that took the lowest priority, and that of its session's group."""
    command = [sys.executable, "-c", PROGRAM, *([str(AUTOGROUP)] if GROUPED else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, start_new_session=own_session
    )
    return done.stdout.split()


def test_it_is_the_lowest() -> None:
    assert priorities(own_session=True)[0] == "19"


@pytest.mark.skipif(not GROUPED, reason="this kernel does not group by session here")
def test_a_session_of_its_own_steps_back_and_another_one_does_not() -> None:
    before = AUTOGROUP.read_text().split()[-1]
    assert priorities(own_session=True)[1] == "19"
    assert priorities(own_session=False)[1] == before
    assert AUTOGROUP.read_text().split()[-1] == before
