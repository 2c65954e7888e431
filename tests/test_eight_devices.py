"""Runs `tests/eight_devices` in a process of its own, whose CPU passes for eight devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "eight_devices"


# The longest of all: it begins first.
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_that_needs_eight_devices() -> None:
    devices = "--xla_force_host_platform_device_count=8"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(FOLDER)],
        cwd=FOLDER.parent.parent,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    # Exit code 5 would mean that no test was found.
    assert process.returncode == 0, process.stdout + process.stderr
