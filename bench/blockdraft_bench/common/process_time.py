"""How much processor time a process and all its descendants have used (Linux)."""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    ticks: int


def family_cpu_seconds(process_id: int, proc: Path = PROC) -> float | None:
    """Return the processor seconds of a process and its living descendants; None if unknown."""
    processes = _processes(proc)
    if process_id not in processes:
        return None
    family = {process_id}
    # A child may have a lower number than its parent: repeat until nobody joins.
    while joining := {
        number
        for number, process in processes.items()
        if process.parent in family and number not in family
    }:
        family |= joining
    return sum(processes[number].ticks for number in family) / os.sysconf("SC_CLK_TCK")


def _processes(proc: Path) -> dict[int, _Process]:
    found = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text("utf-8", errors="replace")
        except OSError:
            continue  # It has ended.
        # The name, in parentheses, may hold anything; state and parent follow it.
        fields = text.rpartition(")")[2].split()
        found[int(stat.parent.name)] = _Process(int(fields[1]), int(fields[11]) + int(fields[12]))
    return found
