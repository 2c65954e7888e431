"""The processor of this host: its bfloat16 instructions and the cores that may be used."""

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

# Linux's names of bfloat16 instructions: on x86, of vectors and of tiles, and on Arm.
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
# Fields of /proc/cpuinfo that list instructions: on x86, and on Arm.
_FLAGS = ("flags", "Features")


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor, its instructions for bfloat16, and how many cores this process may use."""

    name: str
    instructions: tuple[str, ...]
    cores: int


def this_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """Return the processor this process runs on; its name is the architecture if unknown."""
    fields = processor_facts(cpuinfo)
    flags = {flag for name in _FLAGS for flag in fields.get(name, "").split()}
    return Processor(
        name=fields.get("model name") or platform.processor() or platform.machine(),
        instructions=tuple(name for name in _INSTRUCTIONS if name in flags),
        cores=usable_cores(),
    )


def processor_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first core; none on other systems."""
    fields: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass  # not Linux
    return fields


def usable_cores() -> int:
    """Return the cores that this process may use, which a container or `taskset` may limit."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
