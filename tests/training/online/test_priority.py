"""The trainer's priority, as the kernel has it."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
PROGRAM = """
import os
from pathlib import Path
from blockdraft_training.online.commands.run import take_lowest_priority
take_lowest_priority()
group = Path("/proc/self/autogroup")
print(os.nice(0), group.read_text().split()[-1] if group.exists() else None)
"""


def priorities(*, own_session: bool) -> list[str]:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, start_new_session=own_session
    )
    return done.stdout.split()


def test_it_is_the_lowest() -> None:
    assert priorities(own_session=True)[0] == "19"


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="no priorities by session in this kernel")
def test_a_session_of_its_own_steps_back_and_another_one_does_not() -> None:
    before = AUTOGROUP.read_text().split()[-1]
    assert priorities(own_session=True)[1] == "19"
    assert priorities(own_session=False)[1] == before
    assert AUTOGROUP.read_text().split()[-1] == before
