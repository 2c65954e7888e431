"""What a figure was measured with: code, versions, hardware."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("blockdraft", "jax", "jaxlib", "flax", "numpy")


def describe_environment() -> dict[str, Any]:
    """Return command, commit, versions and hardware as a JSON object."""
    return {
        "command": command_line(),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": hardware(),
    }


def command_line() -> str:
    """Return the command that started this process, as a shell reads it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """Return the commit this code is at, with "-dirty" if it was changed since; None outside git.

    Args:
        folder: Has to be under version control itself: an installed copy may lie in the checkout
            of something else.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def hardware() -> dict[str, Any]:
    """Return the processor, how many cores this process may use, and the accelerator if any."""
    import jax

    devices = jax.devices()
    accelerated = devices[0].platform != "cpu"
    return {
        "cpu": _cpu_model(),
        "cores": _usable_cores(),
        "accelerator": f"{len(devices)} x {devices[0].device_kind}" if accelerated else None,
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
